#!/bin/sh
# Two launchers of one rank each: two_hosts.sh WHERE PYTHON SCRIPT FAULT
#
# WHERE namespaces: each in a network and a host name of its own, joined by a pair of veth interfaces (needs to be root);
# nothing is left of them when the launchers have ended. WHERE here: both on this host.
where=$1 python=$2 script=$3 fault=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

launcher() { # node rank, address of the first
    echo "$python -m torch.distributed.run --nnodes 2 --node-rank $1 --nproc-per-node 1 \
        --master-addr $2 --master-port ${PORT:-29500} $script $fault"
}

if [ "$where" = here ]; then
    $(launcher 0 127.0.0.1) & a=$!
    $(launcher 1 127.0.0.1) & b=$!
else
    export GLOO_SOCKET_IFNAME=eth0
    wait_for="while [ ! -e $scratch/go ]; do sleep 0.05; done"
    unshare --net --uts sh -c "hostname host-a; $wait_for; exec $(launcher 0 10.77.0.1)" & a=$!
    unshare --net --uts sh -c "hostname host-b; $wait_for; exec $(launcher 1 10.77.0.1)" & b=$!
    for pid in $a $b; do # until each has left this namespace
        while [ "$(readlink /proc/$pid/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
    done
    ip link add eth0 netns $a type veth peer name eth0 netns $b
    nsenter -t $a -n sh -c "ip link set lo up; ip addr add 10.77.0.1/24 dev eth0; ip link set eth0 up"
    nsenter -t $b -n sh -c "ip link set lo up; ip addr add 10.77.0.2/24 dev eth0; ip link set eth0 up"
    touch "$scratch/go"
fi
wait $a; one=$?
wait $b; other=$?
exit $((one ? one : other))
