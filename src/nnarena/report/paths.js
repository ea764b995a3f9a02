// Paths that walk. The page has them whole; this cuts them off at a step, by a slider and by time.

const WALK = 9000;  // milliseconds that all steps take

class Walks {
  constructor(section) {
    this.slider = section.querySelector("input[type=range]");
    this.button = section.querySelector(".play");
    this.told = section.querySelector("output");
    this.steps = Number(this.slider.max);
    this.frame = null;
    this.walks = [...section.querySelectorAll(".walk")].map((group) => ({
      group,
      line: group.querySelector("polyline"),
      dot: group.querySelector("circle"),
      points: group.querySelector("polyline").getAttribute("points").split(" "),
      steps: group.dataset.steps.split(",").map(Number),
      values: group.dataset.values.split(","),
      cell: section.querySelector(`tr[data-who="${group.dataset.who}"] .now`),
    }));
    this.slider.parentNode.hidden = false;
    this.slider.addEventListener("input", () => { this.pause(); this.show(Number(this.slider.value)); });
    this.button.addEventListener("click", () => (this.frame === null ? this.play() : this.pause()));
    this.light(section);
    this.show(this.steps);
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) this.playWhenSeen(section);
  }

  show(step) {
    for (const { line, dot, points, steps, values, cell } of this.walks) {
      let last = steps.findIndex((at) => at > step);
      last = last < 0 ? steps.length - 1 : last - 1;
      line.setAttribute("points", points.slice(0, last + 1).join(" "));
      const [x, y] = points[last].split(",");
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
      if (cell) cell.textContent = shortNumber(Number(values[last]));
    }
    this.slider.value = step;
    this.told.textContent = `step ${Math.round(step)} of ${this.steps}`;
  }

  // From where the slider is, or from the start if it is at the end.
  play() {
    let from = Number(this.slider.value);
    if (from >= this.steps) from = 0;
    let began = null;
    const move = (now) => {
      began ??= now;
      const step = from + ((now - began) / WALK) * this.steps;
      this.show(Math.min(this.steps, step));
      if (step >= this.steps) this.pause();
      else this.frame = requestAnimationFrame(move);
    };
    this.button.textContent = "pause";
    this.frame = requestAnimationFrame(move);
  }

  pause() {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.frame = null;
    this.button.textContent = "play";
  }

  // Once, when most of the drawing comes into view; a hand on the controls ends it.
  playWhenSeen(section) {
    const watch = new IntersectionObserver((seen) => {
      if (!seen.some((entry) => entry.isIntersecting)) return;
      watch.disconnect();
      if (this.frame === null && Number(this.slider.value) === this.steps) this.play();
    }, { threshold: 0.6 });
    watch.observe(section.querySelector("svg"));
    addEventListener("beforeprint", () => { watch.disconnect(); this.pause(); this.show(this.steps); });
  }

  light(section) {
    for (const row of section.querySelectorAll("tr[data-who]")) {
      const turn = (on) => {
        section.classList.toggle("lit", on);
        for (const { group } of this.walks) group.classList.toggle("lit", on && group.dataset.who === row.dataset.who);
      };
      row.addEventListener("pointerenter", () => turn(true));
      row.addEventListener("pointerleave", () => turn(false));
    }
  }
}

for (const section of document.querySelectorAll("section.tuned")) {
  if (section.querySelector("svg")) new Walks(section);
  const only = section.querySelector(".only");
  if (!only) continue;
  only.hidden = false;
  only.addEventListener("click", () => {
    const rows = [...section.querySelectorAll("tr[data-who]")];
    const colors = new Map(rows.map((row) => [Number(row.dataset.who), Number(row.dataset.color)]));
    showOnly(new Set(colors.keys()), colors);
    section.previousElementSibling.scrollIntoView();
  });
}
