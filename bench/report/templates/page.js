// A click on a heading sorts its table: numbers by size, all else by letters.
const compare = (a, b) => {
  const x = parseFloat(a), y = parseFloat(b);
  return isNaN(x) || isNaN(y) ? a.localeCompare(b) : x - y;
};
for (const heading of document.querySelectorAll("table.grid th")) {
  heading.onclick = () => {
    const sign = heading.ariaSort === "ascending" ? -1 : 1, at = heading.cellIndex;
    for (const other of heading.parentNode.cells) other.ariaSort = null;
    heading.ariaSort = sign > 0 ? "ascending" : "descending";
    const body = heading.closest("table").tBodies[0], text = row => row.cells[at].textContent;
    body.append(...[...body.rows].sort((a, b) => sign * compare(text(a), text(b))));
  };
}
