// Makes an element's content that of another one, and touches only what differs: focus, selection and open details stay.
const key = (node) => (node.nodeType === 1 ? node.id || node.dataset.key || "" : "");
const alike = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName;

function attributes(from, to) {
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !(name === "open" && from.nodeName === "DETAILS")) from.removeAttribute(name);
  }
  for (const { name, value } of [...to.attributes]) {
    if (name === "open" && from.nodeName === "DETAILS") continue; // the reader has opened or closed it
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
}

function element(from, to) {
  if (from.nodeType !== 1) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (from.nodeName === "TIME" && from.dateTime === to.dateTime && from.dataset.form === to.dataset.form) return;
  if (from.nodeName === "TIME") delete from.dataset.utc;
  attributes(from, to);
  if (!from.hasAttribute("data-keep")) morph(from, to);
}

export function morph(from, to) {
  const keyed = new Map();
  for (const child of [...from.children].reverse()) if (key(child)) keyed.set(key(child), child);
  let at = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const name = key(wanted);
    const found = name ? keyed.get(name) : at && !key(at) && alike(at, wanted) ? at : null;
    keyed.delete(name); // the next one with the key is another element
    if (found && alike(found, wanted)) {
      if (found === at) at = at.nextSibling;
      else from.insertBefore(found, at);
      element(found, wanted);
    } else {
      from.insertBefore(wanted, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
