// Two things a page cannot do by itself: keep its upper part fresh, and show a log while it grows.
"use strict";

function refreshing(part) {
  const seconds = Number(part.dataset.refresh);
  if (!seconds) return;
  setTimeout(async () => {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("live");
      const held = part.contains(document.activeElement) || part.querySelector("details[open]");
      if (fresh && !held) {
        part.replaceWith(fresh);
        part = fresh;
      }
    } catch { /* the gateway is away: the page stays as it is and tries again */ }
    refreshing(part);
  }, seconds * 1000);
}

function following(log) {
  const source = new EventSource(log.dataset.stream);
  source.addEventListener("log", (event) => {
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    log.append(event.data);
    while (log.childNodes.length > 400) log.firstChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
  });
  source.addEventListener("end", () => {
    source.close();
    log.dataset.ended = "yes";
  });
}

const part = document.getElementById("live");
if (part) refreshing(part);
const log = document.getElementById("log");
if (log) following(log);
