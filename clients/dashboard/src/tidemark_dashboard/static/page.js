// Starts the parts of a page: times in the reader's zone, plots, and what changes.
import { follow } from "./live.js";
import { draw } from "./plots.js";
import { localize } from "./times.js";

// Escape hides an explanation, until the pointer or the focus moves on (WCAG 1.4.13).
const quiet = (on) => document.documentElement.toggleAttribute("data-quiet", on);
document.addEventListener("keydown", (event) => event.key === "Escape" && quiet(true));
for (const event of ["focusin", "pointerover"]) document.addEventListener(event, () => quiet(false));

localize(document);
draw(document);
follow((part) => {
  localize(part);
  draw(part);
});
