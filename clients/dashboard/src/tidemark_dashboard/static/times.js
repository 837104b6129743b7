// Times in the reader's zone; the title has the reader's zone and UTC.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const steps = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export function time(date) {
  return date.toDateString() === new Date().toDateString() ? clock.format(date) : `${day.format(date)} ${clock.format(date)}`;
}

function ago(date) {
  const seconds = Math.max(0, Math.round((Date.now() - date) / 1000));
  const [length, unit] = steps.find(([each]) => seconds >= each) || [1, "s"];
  return `${Math.floor(seconds / length)} ${unit} ago`;
}

function write(element) {
  const date = new Date(element.dateTime);
  const text = element.dataset.form === "ago" ? ago(date) : element.dataset.form === "full" ? `${day.format(date)} ${clock.format(date)}` : time(date);
  if (element.textContent !== text) element.textContent = text;
}

export function localize(part) {
  for (const element of part.querySelectorAll("time")) {
    if (!element.dataset.utc) {
      element.dataset.utc = element.title;
      element.title = `${day.format(new Date(element.dateTime))} ${clock.format(new Date(element.dateTime))} ${zone}\n${element.dataset.utc}`;
    }
    write(element);
  }
}

document.getElementById("zone").textContent = zone === "UTC" ? "UTC" : `the zone ${zone}; point at one for UTC`;
setInterval(() => {
  if (!document.hidden) document.querySelectorAll('time[data-form="ago"]').forEach(write);
}, 1000);
