for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const number = (text) => (text === "" ? NaN : Number(text));
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)], [m, n] = [number(x), number(y)];
        if (Number.isNaN(m) && Number.isNaN(n)) return (up ? 1 : -1) * x.localeCompare(y);
        if (Number.isNaN(m) || Number.isNaN(n)) return Number.isNaN(m) ? 1 : -1;
        return up ? m - n : n - m;
      });
      body.append(...rows);
    });
  });
}
