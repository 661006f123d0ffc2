for (const table of document.querySelectorAll("table.grid")) {
  const prompts = table.classList.contains("prompts");
  const search = prompts || table.classList.contains("main") ? "search" : null;
  new DataTable(table, { order: [], autoWidth: false, paging: prompts && table.rows.length > 26,
    pageLength: 20, info: false, layout: { topStart: search, topEnd: null } });
}
for (const holder of document.querySelectorAll(".chart")) {
  const spec = JSON.parse(document.getElementById(holder.dataset.spec).textContent);
  const least = Math.min(...spec.concat.map((panel) => panel.width)) + 60;
  spec.columns = Math.max(1, Math.min(spec.columns, Math.floor(holder.clientWidth / least)));
  for (const panel of spec.concat) {  // names of lines stand above them, numbers left of the axis
    const lines = [panel, ...(panel.layer ?? [])].some((one) => one.encoding?.y?.type == "nominal");
    panel.width = holder.clientWidth / spec.columns - (lines ? 36 : 76);
  }
  spec.config.legend.columns = Math.max(2, Math.floor(holder.clientWidth / 170));
  const { view } = await vegaEmbed(holder, spec, { renderer: "svg", actions: false });
  view.addSignalListener("pick", (_, picked) => {
    for (const row of document.querySelectorAll("tr[data-decoder]"))
      row.classList.toggle("picked", (picked.decoder ?? []).includes(row.dataset.decoder));
  });
}
document.body.dataset.ready = "yes";
