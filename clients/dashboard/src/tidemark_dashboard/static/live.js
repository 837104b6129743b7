// Follows the events of the page: replaces the parts that have changed, says when the dashboard is away, and comes back by itself.
import { morph } from "./morph.js";
import { time } from "./times.js";

const SILENT_MS = 12000; // the dashboard sends something each 5 s
const AGAIN_MS = 2000;
const HIDDEN_MS = 30000; // a page that nobody sees is not followed

const root = document.documentElement;
const lost = document.getElementById("lost");
let source = null;
let heard = Date.now();
let wasLost = false;
let hiddenTimer = 0;

function mark() {
  const isLost = Boolean(document.body.dataset.events) && !document.hidden && Date.now() - heard > SILENT_MS;
  if (isLost !== wasLost) {
    wasLost = isLost;
    lost.hidden = !isLost;
    lost.textContent = isLost
      ? `This dashboard does not answer. What you see is from ${time(new Date(heard))}. Trying again until it does.`
      : "";
  }
  root.toggleAttribute("data-old", isLost || Boolean(document.querySelector("#freshness [data-old]")));
}

function replace(id, html, done) {
  const element = document.getElementById(id);
  if (!element) return;
  const template = document.createElement("template");
  template.innerHTML = html;
  morph(element, template.content);
  done(element);
}

export function follow(done) {
  const address = document.body.dataset.events;
  mark();
  if (!address) return;

  function open() {
    close();
    source = new EventSource(address);
    source.addEventListener("beat", () => {
      heard = Date.now();
      mark();
    });
    source.addEventListener("parts", (event) => {
      heard = Date.now();
      const parts = Object.entries(JSON.parse(event.data));
      if (document.querySelector("[data-waiting]") && parts.some(([id]) => id !== "freshness" && id !== "waiting")) {
        location.reload();
        return;
      }
      for (const [id, html] of parts) replace(id, html, done);
      mark();
    });
    source.addEventListener("error", async () => {
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        setTimeout(again, AGAIN_MS);
      }
    });
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  // The browser does not say why an answer was refused: a page that leads to the sign-in is loaded again.
  async function again() {
    if (document.hidden || source) return;
    try {
      const answer = await fetch(address, { method: "HEAD", headers: { Accept: "text/html" } });
      if (answer.redirected) {
        location.reload();
        return;
      }
    } catch {
      // away: the next attempt follows
    }
    if (!document.hidden && !source) open();
  }

  function look() {
    clearTimeout(hiddenTimer);
    if (document.hidden) {
      hiddenTimer = setTimeout(close, HIDDEN_MS);
    } else if (!source) {
      heard = Date.now();
      open();
    }
  }

  document.addEventListener("visibilitychange", look);
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) look();
  });
  setInterval(() => {
    mark();
    // A connection that is open and silent, as after a sleep of the machine, is made again.
    if (!document.hidden && Date.now() - heard > 2 * SILENT_MS && source && source.readyState !== EventSource.CONNECTING) open();
  }, 1000);
  look();
}
