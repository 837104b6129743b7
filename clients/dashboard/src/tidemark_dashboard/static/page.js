// Starts the parts of a page: times in the reader's zone, plots, and what changes.
import { follow } from "./live.js";
import { draw } from "./plots.js";
import { localize } from "./times.js";

localize(document);
draw(document);
follow((part) => {
  localize(part);
  draw(part);
});
