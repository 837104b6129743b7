// Times in the zone that the reader has chosen: the reader's own, or UTC. The title has both.
const own = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const KEY = "tidemark-zone";
const steps = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const changed = [];
let zone, day, clock, short;

function choose(name) {
  zone = name;
  day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: zone });
  clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZone: zone });
  short = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short", timeZone: zone });
}

function chosen() {
  try {
    return localStorage.getItem(KEY) === "UTC" ? "UTC" : own;
  } catch {
    return own; // a browser that keeps nothing
  }
}

choose(chosen());

export const currentZone = () => zone;

// The short name of the zone at that time, such as CET or GMT+5.
export function zoneOf(date) {
  return short.formatToParts(date).find((each) => each.type === "timeZoneName")?.value ?? zone;
}

export function onZone(call) {
  changed.push(call);
}

export function time(date) {
  return day.format(date) === day.format(new Date()) ? clock.format(date) : `${day.format(date)} ${clock.format(date)}`;
}

function ago(date) {
  const seconds = Math.max(0, Math.round((Date.now() - date) / 1000));
  const [length, unit] = steps.find(([each]) => seconds >= each) || [1, "s"];
  return `${Math.floor(seconds / length)} ${unit} ago`;
}

function write(element) {
  const date = new Date(element.dateTime);
  const form = element.dataset.form;
  let text = form === "ago" ? ago(date) : form === "full" ? `${day.format(date)} ${clock.format(date)}` : time(date);
  // A table has the zone once, in the head of the page.
  if (form !== "ago" && !element.closest("table")) text += ` ${zoneOf(date)}`;
  if (element.textContent !== text) element.textContent = text;
}

export function localize(part) {
  for (const element of part.querySelectorAll("time")) {
    const date = new Date(element.dateTime);
    if (!element.dataset.utc) element.dataset.utc = element.title;
    element.title = `${day.format(date)} ${clock.format(date)} ${zone}\n${element.dataset.utc}`;
    write(element);
  }
}

function label(button) {
  const other = zone === "UTC" ? own : "UTC";
  button.textContent = `Times: ${zone}`;
  button.title = `Show times in ${other}`;
}

const button = document.getElementById("zone");
if (button) {
  button.hidden = false;
  label(button);
  button.disabled = own === "UTC";
  button.addEventListener("click", () => {
    choose(zone === "UTC" ? own : "UTC");
    try {
      localStorage.setItem(KEY, zone === "UTC" ? "UTC" : "own");
    } catch {
      // the choice lasts as long as the page
    }
    label(button);
    localize(document);
    for (const call of changed) call();
  });
}
setInterval(() => {
  if (!document.hidden) document.querySelectorAll('time[data-form="ago"]').forEach(write);
}, 1000);
