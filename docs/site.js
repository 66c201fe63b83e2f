// What the theme leaves out for readers of screens and keyboards: names of landmarks that would be alike, and tables that scroll.
const mend = () => {
  document.querySelectorAll(".md-search").forEach((dialog) => dialog.setAttribute("aria-label", "Search"));
  document.querySelectorAll(".md-code__nav").forEach((nav, at) => nav.setAttribute("aria-label", `Code block ${at + 1}`));
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach((box) => { box.tabIndex = 0; });
  document.querySelectorAll("nav.md-nav").forEach((nav, at) => {
    const name = nav.getAttribute("aria-label") || nav.querySelector("label")?.textContent.trim() || "Pages";
    if (nav.dataset.named) return;
    nav.dataset.named = "yes";
    nav.removeAttribute("aria-labelledby");
    nav.setAttribute("aria-label", `${name} (${at + 1})`);
  });
};
mend();
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
