// Progressive: without this the page holds the same, the tables in the order of the run, the figures in them alone.

// Tables sort by a click on a heading. The baseline stays on top, and what has no value at the end.
for (const head of document.querySelectorAll("table.sortable thead th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    const key = row => {
      const text = row.cells[head.cellIndex].innerText.trim();
      const number = parseFloat(text);
      return head.className === "number" ? (isNaN(number) ? Infinity : number) : text;
    };
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === Infinity || y === Infinity) return x === y ? 0 : x === Infinity ? 1 : -1;
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    };
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...[...body.rows].filter(row => !row.classList.contains("baseline")).sort(order));
  });
}

// A mark in a picture says what it stands for, under a mouse or a finger.
const tip = document.createElement("div");
tip.className = "tip";
document.addEventListener("pointerover", event => {
  const mark = event.target.closest?.("figure [role='graphics-symbol'][aria-label]");
  if (!mark) return tip.remove();
  tip.textContent = mark.getAttribute("aria-label");
  document.body.append(tip);
  const left = Math.min(event.pageX + 14, scrollX + document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(scrollX + 8, left)}px`;
  tip.style.top = `${event.pageY + 16}px`;
});

// Contents, from the headings.
const contents = document.createElement("nav");
contents.className = "contents";
contents.setAttribute("aria-label", "Contents");
for (const heading of document.querySelectorAll("main h2[id]")) {
  const link = document.createElement("a");
  link.href = `#${heading.id}`;
  link.textContent = heading.textContent;
  contents.append(link);
}
if (contents.childElementCount > 2) document.querySelector("header").append(contents);

// Paper cannot be opened.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(one => one.setAttribute("open", "")));

// A link to a candidate opens what it leads to.
const reveal = () => document.querySelector(`details[id="${CSS.escape(location.hash.slice(1))}"]`)?.setAttribute("open", "");
addEventListener("hashchange", reveal);
reveal();
