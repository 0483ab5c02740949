
// The contact sheet: filters, keys j and k, and outlines that are switched one by one.
{
  const cards = [...document.querySelectorAll("article.card")];
  const filters = document.querySelector("form.filters");
  const visible = () => cards.filter((card) => !card.hidden);
  const filter = () => {
    const { split, finding, faults } = filters.elements;
    for (const card of cards) {
      const checks = card.dataset.checks.split(" ").filter(Boolean);
      card.hidden = !(
        (!split.value || card.dataset.split === split.value) &&
        (!finding.value || JSON.parse(card.dataset.names).includes(finding.value)) &&
        (!faults.value || (faults.value === "any" ? checks.length > 0 : checks.includes(faults.value)))
      );
    }
    filters.querySelector("output").textContent = `${visible().length} of ${cards.length} cases`;
  };
  filters.hidden = false;
  filters.addEventListener("change", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filter();
  for (const picture of document.querySelectorAll(".picture")) {
    picture.addEventListener("change", (event) => {
      for (const path of picture.querySelectorAll(`path[data-mask="${event.target.value}"]`)) {
        path.style.display = event.target.checked ? "" : "none";
      }
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
    if (event.key !== "j" && event.key !== "k") return;
    const shown = visible();
    if (!shown.length) return;
    const at = shown.indexOf(document.activeElement.closest("article.card"));
    const next = event.key === "j" ? at + 1 : Math.max(at - 1, 0);
    const card = shown[Math.min(next, shown.length - 1)];
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "start" });
  });
}
