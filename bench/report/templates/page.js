for (const table of document.querySelectorAll("table.grid")) {
  new DataTable(table, { order: [], autoWidth: false, paging: table.rows.length > 60,
    pageLength: 50, info: false, layout: { topStart: "search", topEnd: null } });
}
for (const holder of document.querySelectorAll(".chart")) {
  const spec = JSON.parse(document.getElementById(holder.dataset.spec).textContent);
  const least = Math.min(...spec.concat.map((panel) => panel.width)) + 60;
  spec.columns = Math.max(1, Math.min(spec.concat.length, Math.floor(holder.clientWidth / least)));
  for (const panel of spec.concat) panel.width = holder.clientWidth / spec.columns - 120;
  spec.config.legend.columns = Math.max(2, Math.floor(holder.clientWidth / 170));
  const { view } = await vegaEmbed(holder, spec, { renderer: "svg", actions: false });
  view.addSignalListener("pick", (_, picked) => {
    for (const row of document.querySelectorAll("tr[data-decoder]"))
      row.classList.toggle("picked", (picked.decoder ?? []).includes(row.dataset.decoder));
  });
}
document.body.dataset.ready = "yes";
