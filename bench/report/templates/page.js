for (const table of document.querySelectorAll("table.grid")) {
  const prompts = table.classList.contains("prompts");
  const search = table.rows.length > 13 ? "search" : null;
  new DataTable(table, { order: [], autoWidth: false, paging: prompts && table.rows.length > 26,
    pageLength: 20, info: false, layout: { topStart: search, topEnd: null } });
}
document.body.dataset.ready = "yes";
