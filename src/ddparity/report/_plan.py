"""The next trials as text: what ``ddparity plan`` prints."""

from ddparity._plain import plain
from ddparity.judge import TrialPlan
from ddparity.report._wording import shown


def render_plan(plan: TrialPlan) -> str:
    """Return which variables changed between two trials and the commands that tell them apart, ending in a newline."""
    return "\n\n".join("\n".join(block) for block in (_variables(plan), _trials(plan)) if block) + "\n"


def _variables(plan: TrialPlan) -> list[str]:
    lines = [f"from {plain(plan.control)} to {plain(plan.candidate)}: {_heading(plan)}"]
    for variable in plan.variables:
        lines.append(f"  {plain(variable.name)}")
        lines += [f"    {plain(f.variable)}: {shown(f.control)} -> {shown(f.candidate)}" for f in variable.facts]
    return lines


def _heading(plan: TrialPlan) -> str:
    if plan.confounded:
        return f"CONFOUNDED, {len(plan.variables)} variables changed"
    return "nothing that was recorded changed" if plan.variable is None else "one variable changed"


def _trials(plan: TrialPlan) -> list[str]:
    if plan.confounded:
        head = "next, one variable a trial; stop at the first that deviates, its variable is the one:"
    elif plan.trials:
        head = "next, if it deviates: fewer processes, to see from how many on"
    else:
        head = f"next: ddparity compare {plain(plan.control)} {plain(plan.candidate)}"
    lines = [head]
    for number, trial in enumerate(plan.trials, start=1):
        lines.append(f"  {number}. {plain(trial.variable)}{f' ({plain(trial.note)})' if trial.note else ''}")
        lines += [f"     {plain(command)}" for command in (trial.record, trial.compare) if command]
    return lines
