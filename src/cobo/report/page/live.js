// Only in the page of `cobo watch`: asks once a second for what is new, as long as somebody looks at it.

const PAUSE = 1000;
let ahead = 0, asking = false; // by how much our clock is ahead of the server's, in seconds

function ago(seconds) {
  if (seconds < 90) return count(Math.max(0, Math.round(seconds)), "second");
  return seconds < 5400 ? count(Math.round(seconds / 60), "minute") : count(Math.round(seconds / 3600), "hour");
}

function goingList() {
  const { runs, finished } = data.live;
  const items = runs.map(({ label, state: how, round, rounds, heard }) => {
    const bar = make("progress", { max: rounds, value: round, "aria-label": label });
    const said = `${how}, round ${round.toLocaleString("en")} of ${rounds.toLocaleString("en")}, last heard of ${ago(Date.now() / 1000 - ahead - heard)} ago`;
    return make("li", {}, make("b", {}, label), bar, make("span", {}, said));
  });
  if (finished) items.push(make("li", {}, make("span", {}, `${count(finished, "run")} finished`)));
  byId("going").replaceChildren(...items);
}

// Said only when it changes: screen readers would say it every second.
function link(words) {
  if (byId("link").textContent !== words) byId("link").textContent = words;
}

async function ask() {
  if (asking || document.hidden) return;
  asking = true;
  let status = 0, news = null;
  try { // what can fail on the way, and nothing else: a mistake in drawing is not the server's
    const answer = await fetch(`data?since=${data.version}`, { cache: "no-store" });
    if (answer.status === 200) news = await answer.json();
    status = answer.status;
  } catch {
    status = 0;
  }
  asking = false;
  link(linkWords(status));
  if (news) take(news);
  goingList();
  if (news) fill();
}

function linkWords(status) {
  if (status === 200 || status === 204) return "Live";
  if (status === 403) return "Not allowed any more: open the address that cobo watch prints.";
  return status ? `The server answers ${status}; trying again.` : "Nobody answers; trying again.";
}

function take(news) {
  data = news;
  ahead = Date.now() / 1000 - data.now;
  document.title = `${data.title} · cobo`;
}

byId("live").hidden = false;
ahead = Date.now() / 1000 - data.now;
link("Live");
goingList();
setInterval(ask, PAUSE);
document.addEventListener("visibilitychange", ask);
