// The scan of a question: three planes, window and level, and overlays that are switched one by one.
import { address, ask, get } from "./api.js";
import { figure, h, put, s } from "./dom.js";
import { place, writePlace } from "./place.js";
import { refusal, VolumeView } from "./volume.js";

const PLANES = ["axial", "coronal", "sagittal"];
const AXIS = { axial: "z", coronal: "y", sagittal: "x" };
const ROLES = { truth: "truth", predicted: "predicted", followed: "followed", "looked-at": "looked at", shown: "shown", occlusion: "map of answer" };
const OTHERS = 5; // colours for masks that the question is not about
const KEPT_PICTURES = 150;
const SHADE = 0.7; // opacity of the cell with the largest drop
const ASK_AGAIN_MS = 700; // while the server works
const WHEEL_PX = 60; // of turning for one slice; a mouse's notch is 100 or more

/** Keeps slices that were fetched, the last ones longest. */
class Pictures {
  held = new Map();

  async get(url) {
    const picture = this.held.get(url) ?? ask(url).then(async (answer) => URL.createObjectURL(await answer.blob()));
    this.held.delete(url);
    this.held.set(url, picture);
    picture.catch(() => this.held.delete(url)); // it is asked for again
    while (this.held.size > KEPT_PICTURES) {
      const [oldest, old] = this.held.entries().next().value;
      this.held.delete(oldest);
      old.then(URL.revokeObjectURL, () => {});
    }
    return picture;
  }
}

/** Draws one question's scan into `root`. */
export class ScanView {
  known = null; // called when the data set has told what it knows of a case
  pictures = new Pictures();
  choices = new Map(); // overlay id -> whether the reader switched it on
  preset = null; // a window that the reader chose, kept from question to question

  constructor(root) {
    this.root = root;
    this.volume = new VolumeView((voxel, value, mm) => {
      this.moved = true;
      this.at = { axial: voxel.z, coronal: voxel.y, sagittal: voxel.x };
      this.tell(value, mm);
      this.paintControls();
    }, (edges) => {
      this.window = edges;
      this.preset = null;
      this.paintControls();
    });
  }

  /** Tell whether three planes and 3D are drawn in place of slices. */
  get is3d() {
    return place.scan === "3d" && !this.refusal;
  }

  /** Show the scan of some references; it looks again while the data set is still asked for masks. */
  async show(references) {
    clearTimeout(this.later);
    const key = JSON.stringify(references);
    this.key = key;
    this.highlighted = null;
    this.root.classList.add("loading");
    let scene;
    try {
      scene = await get("scene", references);
    } catch (error) {
      scene = { notes: [error.message], overlays: [], waiting: false };
    }
    if (this.key !== key) return; // the reader has gone on
    this.scene = { ...scene, references };
    this.moved = false;
    await this.begin();
    if (this.key !== key) return;
    this.root.classList.remove("loading");
    this.again(key, 0);
  }

  /** Change what is drawn over the same scan, as when another rollout is chosen; it may not be shown yet. */
  async redraw(references) {
    if (this.root.classList.contains("loading")) {
      await this.show(references);
      return;
    }
    const key = JSON.stringify(references);
    this.key = key;
    const scene = await get("scene", references);
    if (this.key !== key || !scene.planes) return;
    this.scene = { ...scene, references };
    await this.extents();
    this.switches();
    this.paint();
    if (scene.waiting) this.again(key, 0);
  }

  again(key, tries) {
    if (!this.scene.waiting || tries > 300) return;
    this.later = setTimeout(async () => {
      const before = this.scene;
      const scene = await get("scene", before.references).catch(() => null);
      if (this.key !== key || !scene) return;
      this.scene = { ...scene, references: before.references };
      if (!scene.waiting) this.known?.();
      if (scene.overlays.length !== before.overlays.length || !scene.waiting) {
        await this.extents();
        if (!this.moved) this.start();
        this.switches();
        this.notes();
        this.paint();
      }
      this.again(key, tries + 1);
    }, ASK_AGAIN_MS);
  }

  async begin() {
    const { scene } = this;
    if (!scene.planes) {
      put(this.root, ...scene.notes.map((note) => h("p", { class: "empty" }, note)));
      return;
    }
    this.main = this.main ?? "axial";
    this.at = Object.fromEntries(PLANES.map((plane) => [plane, Math.floor(scene.planes[plane].count / 2)]));
    const usual = Object.keys(scene.windows)[0];
    this.window = [...(scene.windows[this.preset] ?? scene.windows[usual])];
    await this.extents();
    if (this.scene !== scene) return; // the reader has gone on
    this.start();
    this.build();
    this.switches();
    this.notes();
    this.paint();
  }

  /** Ask on which slices the drawn overlays are seen. */
  async extents() {
    const wanted = this.scene.overlays.filter((one) => this.isOn(one));
    await Promise.all(wanted.map((one) => this.extent(one)));
  }

  async extent(one) {
    if (one.extent) return;
    if (one.follows && !one.made) {
      this.follow(one); // takes as long as the segmenter does
      return;
    }
    try {
      one.extent = await get("extent", { ...this.scene.references, overlay: one.id });
    } catch (error) {
      one.extent = { axial: [], coronal: [], sagittal: [], fullest: {}, window: null };
      one.fault = error.message;
    }
  }

  /** Have the boxes of an overlay followed, and draw the mask once it is made. */
  async follow(one) {
    if (one.following || one.fault) return;
    one.following = true;
    const { references } = this.scene;
    while (one.following) {
      this.tellFollowed(one);
      const told = await get("followed", { ...references, overlay: one.id }).catch((error) => ({ fault: error.message }));
      if (!this.scene.overlays.includes(one)) return; // the reader has gone on
      if (told.waiting) await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN_MS));
      else Object.assign(one, { made: !told.fault, fault: told.fault, legend: told.legend });
      one.following = Boolean(told.waiting) && this.isOn(one);
    }
    this.tellFollowed(one);
    if (!one.made) return;
    await this.extent(one);
    if (this.scene.overlays.includes(one)) this.paint();
  }

  /** Tell how far the segmenter is with an overlay, and how like the truth its mask is. */
  tellFollowed(one) {
    if (!one.told) return; // the list is not built yet
    one.told.className = `legend ${one.fault ? "bad" : "faint"}`;
    put(one.told, one.following ? "The segmenter follows the boxes …" : one.fault || one.legend);
  }

  /**
   * Begin where most of what the question is about is seen, or next to there where the model pointed or looked too;
   * else where it pointed, else in the middle.
   */
  start() {
    const seen = this.scene.overlays.filter((one) => one.asked && one.extent && one.role !== "shown" && one.extent.axial.length);
    const first = seen.find((one) => one.role === "truth") ?? seen[0];
    if (!first) return;
    this.goTo(first);
    const from = this.at.axial;
    const both = seen.filter((one) => one.role === "predicted" || one.role === "looked-at").flatMap((one) => one.extent.axial)
      .filter((z) => first.extent.axial.includes(z)).sort((one, other) => Math.abs(one - from) - Math.abs(other - from));
    if (both.length) this.at.axial = both[0];
    const fitting = this.scene.windows[first.extent.window];
    if (!this.preset && fitting) this.window = [...fitting];
  }

  /** Move every plane to the slice that shows most of an overlay. */
  goTo(one) {
    for (const plane of PLANES) this.at[plane] = one.extent.fullest[plane] ?? this.at[plane];
  }

  /** Go to the slice that a side cites for a finding, highlight the mask of the finding, and say what is seen. */
  async pointAt(side, finding, slice) {
    const { scene } = this;
    if (!scene?.planes) return;
    const about = finding ?? "what was asked";
    const mask = scene.overlays.find((one) => one.role === "truth" && one.solid && (finding ? one.name === finding : one.asked));
    this.highlighted = mask?.id ?? null;
    if (mask) {
      this.choices.set(mask.id, true);
      await this.extent(mask);
      if (this.scene !== scene) return;
    }
    const isHere = scene.sides.includes(side);
    if (slice !== null && isHere) {
      if (mask) this.goTo(mask);
      this.main = "axial";
      this.at.axial = Math.max(0, Math.min(scene.planes.axial.count - 1, slice));
      this.moved = true;
    }
    const seen = mask?.extent.axial ?? [];
    put(this.cited, slice === null ? `No slice is cited for ${about}.`
      : !isHere ? `Slice ${slice} is of another scan than this one.`
      : !mask ? `Slice ${slice} is cited for ${about}. There is no mask of it.`
      : seen.includes(slice) ? `Slice ${slice} is cited for ${about}: its mask is seen here.`
      : `Slice ${slice} is cited for ${about}: its mask is not seen here${seen.length ? `, but on slices ${seen[0]} to ${seen.at(-1)}` : ""}.`);
    this.switches();
    this.paint();
  }

  isOn(one) {
    return this.choices.get(one.id) ?? one.asked;
  }

  /** Return how strongly an overlay is drawn: another one may be highlighted. */
  emphasis(one) {
    if (!this.highlighted) return "drawn";
    return this.highlighted === one.id ? "highlighted" : "dimmed";
  }

  colour(one) {
    if (one.role === "truth") {
      if (one.asked) return "var(--truth)";
      const others = this.scene.overlays.filter((other) => other.role === "truth" && !other.asked);
      return `var(--other-${others.indexOf(one) % OTHERS})`;
    }
    if (one.role === "occlusion") return `var(--drop-${one.source})`;
    if (one.role === "predicted" || one.role === "looked-at") return `var(--side-${one.source})`;
    if (one.role === "followed") return `var(--follow-${one.source})`;
    return "var(--shown)";
  }

  build() {
    this.screens = Object.fromEntries(PLANES.map((plane) => [plane, this.screen(plane)]));
    this.slider = h("input", { type: "range", min: 0, "aria-label": "Slice", oninput: () => this.move(this.main, Number(this.slider.value)) });
    this.told = h("output", { class: "slice" });
    this.ribbon = h("div", { class: "ribbon", "aria-hidden": "true" });
    this.under = h("p", { class: "under" }, "\u00a0");
    this.presets = h("div", { class: "chips presets", role: "group", "aria-label": "Window" },
      Object.entries(this.scene.windows).map(([name, edges]) => h("button", { type: "button", "data-window": name, onclick: () => {
        this.preset = name;
        this.window = [...edges];
        this.paint();
      } }, name)), h("span", { class: "faint level" }));
    this.cited = h("p", { class: "pointed", role: "status" });
    this.list = h("div", { class: "overlays" });
    this.words = h("div", { class: "notes" });
    this.stage = h("div", { class: "stage" });
    this.refusal = refusal(this.scene);
    this.modes = h("div", { class: "chips modes", role: "group", "aria-label": "Picture" }, this.refusal
      ? h("p", { class: "faint refusal" }, this.refusal)
      : [["", "slices"], ["3d", "3D"]].map(([mode, name]) => h("button", { type: "button", "data-mode": mode || "slices", onclick: () => {
        writePlace({ scan: mode });
        this.paint();
      } }, name)));
    put(this.root, this.modes, this.stage,
      h("div", { class: "slider" }, h("div", { class: "track" }, this.slider, this.ribbon), this.told),
      this.presets, this.under, this.cited, this.list, this.words);
  }

  /** Return one plane's picture; wheel moves slices, a drag changes window and level, a click the crosshair. */
  screen(plane) {
    const about = this.scene.planes[plane];
    const image = h("img", { alt: "", draggable: "false" });
    const shapes = s("svg", { viewBox: `0 0 ${about.width} ${about.height}`, preserveAspectRatio: "none", "aria-hidden": "true", class: "shapes" });
    const cross = s("svg", { viewBox: `0 0 ${about.width} ${about.height}`, preserveAspectRatio: "none", "aria-hidden": "true", class: "cross" });
    const sides = Object.entries(about.sides).map(([edge, letter]) => h("span", { class: `side ${edge}`, "aria-hidden": "true" }, letter));
    const picture = h("div", { class: "picture", style: { "--aspect": about.aspect } }, image, shapes, cross, sides, h("span", { class: "flags" }));
    const box = h("div", { class: "screen", "data-plane": plane, tabindex: "0", role: "group", "aria-label": `${plane} plane` },
      picture, h("button", { type: "button", class: "enlarge", onclick: () => this.enlarge(plane) }, plane));
    let turned = 0;
    picture.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.moved = true;
      turned += event.deltaMode ? WHEEL_PX * Math.sign(event.deltaY) : event.deltaY;
      if (Math.abs(turned) < WHEEL_PX) return; // touch pads send many small turns
      this.move(plane, this.at[plane] + Math.sign(turned));
      turned = 0;
    }, { passive: false });
    let drag = null;
    picture.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button !== 0) return;
      drag = { x: event.clientX, y: event.clientY, window: [...this.window], far: false };
      picture.setPointerCapture(event.pointerId);
    });
    picture.addEventListener("pointermove", (event) => {
      if (drag) {
        const [right, down] = [event.clientX - drag.x, event.clientY - drag.y];
        drag.far = drag.far || Math.hypot(right, down) > 4;
        if (!drag.far) return;
        const [low, high] = drag.window;
        const unit = (high - low) / 250;
        const [level, width] = [(low + high) / 2 + down * unit, Math.max((high - low) / 100, high - low + 2 * right * unit)];
        this.window = [level - width / 2, level + width / 2];
        this.preset = null;
        this.soon();
      } else this.point(plane, picture, event);
    });
    picture.addEventListener("pointerup", (event) => {
      const click = drag && !drag.far;
      drag = null;
      if (click) this.cross(plane, this.voxel(plane, picture, event));
    });
    picture.addEventListener("pointerleave", () => { this.under.textContent = "\u00a0"; });
    box.addEventListener("keydown", (event) => {
      const step = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.moved = true;
      this.move(plane, this.at[plane] + step);
    });
    return { box, picture, image, shapes, cross, flags: picture.querySelector(".flags") };
  }

  enlarge(plane) {
    this.main = plane;
    this.paint();
  }

  /** Return the voxel z, y, x under the pointer. */
  voxel(plane, picture, event) {
    const box = picture.getBoundingClientRect();
    const about = this.scene.planes[plane];
    const column = Math.min(about.width - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * about.width)));
    const line = Math.min(about.height - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * about.height)));
    if (plane === "axial") return { z: this.at.axial, y: line, x: column };
    const z = about.height - 1 - line; // the head is up
    return plane === "coronal" ? { z, y: this.at.coronal, x: column } : { z, y: column, x: this.at.sagittal };
  }

  cross(plane, { z, y, x }) {
    this.moved = true;
    this.at = { axial: z, coronal: y, sagittal: x };
    this.paint();
  }

  /** Tell the value under the pointer, at most one request at a time. */
  async point(plane, picture, event) {
    this.pointed = this.voxel(plane, picture, event);
    if (this.asking) return;
    this.asking = true;
    while (this.pointed) {
      const voxel = this.pointed;
      this.pointed = null;
      const found = await get("value", { ...this.scene.references, ...voxel }).catch(() => null);
      if (found) this.tell(found.value, found.mm_zyx);
    }
    this.asking = false;
  }

  /** Tell a voxel's value and its place, z, y, x in mm. */
  tell(value, [z, y, x]) {
    const unit = "lung" in this.scene.windows ? "HU" : "";
    this.under.textContent = `${figure(value, 1)} ${unit}  ·  z ${figure(z, 1)}  y ${figure(y, 1)}  x ${figure(x, 1)} mm`;
  }

  move(plane, index) {
    const last = this.scene.planes[plane].count - 1;
    const next = Math.max(0, Math.min(last, index));
    if (next === this.at[plane]) return;
    this.moved = true;
    this.at[plane] = next;
    this.paint();
  }

  /** Move the large plane some slices on. */
  step(slices) {
    if (this.scene?.planes) this.move(this.main, this.at[this.main] + slices);
  }

  soon() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.paint();
    });
  }

  picture(plane, index) {
    const [low, high] = this.window.map((edge) => edge.toFixed(2));
    const { a, b } = this.scene.references;
    return address("slice.png", { a, ...(b ? { b } : {}), plane, index, low, high });
  }

  /** Draw all planes as they stand. */
  paint() {
    if (!this.scene?.planes) return;
    this.paintControls();
    const { is3d } = this;
    for (const button of this.modes.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String((button.dataset.mode === "3d") === is3d));
    }
    const boxes = is3d ? [this.volume.root] : PLANES.map((plane) => this.screens[plane].box);
    if (this.stage.firstChild !== boxes[0]) put(this.stage, ...boxes);
    if (is3d) this.paintVolume();
    else for (const plane of PLANES) {
      this.screens[plane].box.classList.toggle("large", plane === this.main);
      this.paintPlane(plane);
    }
  }

  async paintVolume() {
    const { scene } = this;
    const shapes = scene.overlays.filter((one) => one.solid && this.isOn(one) && (one.made || !one.follows)).map((one) => ({
      id: one.id, role: one.role, colour: rgb(this.list, this.colour(one)), emphasis: this.emphasis(one),
    }));
    try {
      await this.volume.draw({ scene, window: this.window, at: { ...this.at }, shapes });
    } catch (error) {
      this.refusal = `3D failed (${error.message}). Slices are shown.`;
      put(this.modes, h("p", { class: "faint refusal" }, this.refusal));
      this.paint();
    }
  }

  /** Draw slider, window and the lines below the slider. */
  paintControls() {
    const main = this.scene.planes[this.main];
    this.slider.max = main.count - 1;
    this.slider.value = this.at[this.main];
    this.slider.setAttribute("aria-valuetext", `slice ${this.at[this.main]}`);
    this.told.textContent = `${this.at[this.main]} / ${main.count - 1}`;
    for (const button of this.presets.querySelectorAll("button")) {
      const edges = this.scene.windows[button.dataset.window];
      button.setAttribute("aria-pressed", String(edges[0] === this.window[0] && edges[1] === this.window[1]));
    }
    this.presets.querySelector(".level").textContent =
      `level ${figure((this.window[0] + this.window[1]) / 2, 0)}, width ${figure(this.window[1] - this.window[0], 0)}`;
    this.paintRibbon();
  }

  async paintPlane(plane) {
    const screen = this.screens[plane];
    const index = this.at[plane];
    const url = this.picture(plane, index);
    screen.wanted = url;
    const about = this.scene.planes[plane];
    const lines = {
      axial: [this.at.sagittal + 0.5, this.at.coronal + 0.5],
      coronal: [this.at.sagittal + 0.5, about.height - this.at.axial - 0.5],
      sagittal: [this.at.coronal + 0.5, about.height - this.at.axial - 0.5],
    }[plane];
    put(screen.cross, 
      s("path", { d: `M${lines[0]} 0V${about.height}M0 ${lines[1]}H${about.width}` }));
    const on = this.scene.overlays.filter((one) => this.isOn(one) && one.extent?.[plane].includes(index));
    const [picture, shapes] = await Promise.all([
      this.pictures.get(url).catch((error) => { this.under.textContent = error.message; return null; }),
      on.length ? get("shapes", { ...this.scene.references, plane, index, overlays: on.map((one) => one.id).join("|") }).catch(() => ({})) : {},
    ]);
    if (screen.wanted !== url || !picture) return;
    screen.image.src = picture;
    screen.image.alt = `${plane} slice ${index}`;
    put(screen.shapes, ...on.flatMap((one) => {
      const shape = shapes[one.id];
      if (!shape) return [];
      const style = { "--colour": this.colour(one) };
      return [
        ...shape.shades.map(([d, share]) => s("path", { d, class: `shade ${this.emphasis(one)}`, style, "fill-opacity": SHADE * share, "data-overlay": one.id })),
        shape.fill ? s("path", { d: shape.fill, class: `fill ${this.emphasis(one)}`, style, "data-overlay": one.id }) : null,
        s("path", { d: shape.outline, class: `outline ${one.role} ${this.emphasis(one)}`, style, "data-overlay": one.id }),
      ].filter(Boolean);
    }));
    put(screen.flags, ...on.filter((one) => !shapes[one.id]).map((one) =>
      h("span", { style: { "--colour": this.colour(one) } }, `${one.role === "predicted" ? `${one.source.toUpperCase()}: ` : ""}${one.name}`)));
    screen.box.dataset.painted = `${index}`;
    for (const next of [index + 1, index - 1]) {
      if (next >= 0 && next < about.count) this.pictures.get(this.picture(plane, next)).catch(() => {});
    }
  }

  /** Below the slider: a line an overlay, drawn where it is seen. */
  paintRibbon() {
    const count = this.scene.planes[this.main].count;
    const lines = this.scene.overlays.filter((one) => this.isOn(one) && one.extent?.[this.main].length && !["shown", "occlusion"].includes(one.role));
    put(this.ribbon, ...lines.slice(0, 6).map((one) => {
      const runs = [];
      for (const index of one.extent[this.main]) {
        if (runs.length && runs.at(-1)[1] === index) runs.at(-1)[1] += 1;
        else runs.push([index, index + 1]);
      }
      return h("div", {}, runs.map(([start, stop]) => h("i", {
        style: { left: `${(100 * start) / count}%`, width: `${(100 * (stop - start)) / count}%`, "--colour": this.colour(one) },
      })));
    }));
  }

  switches() {
    const { overlays } = this.scene;
    const asked = overlays.filter((one) => one.asked || one.role === "occlusion");
    const rest = overlays.filter((one) => !asked.includes(one));
    const wasOpen = this.list.querySelector("details")?.open;
    put(this.list, 
      ...asked.map((one) => this.switch(one)),
      rest.length ? h("details", { open: wasOpen }, h("summary", {}, `${rest.length} more to draw`), rest.map((one) => this.switch(one))) : "",
      this.scene.waiting ? h("p", { class: "faint waiting" }, "Asking the data set for this case's masks …") : "",
    );
  }

  switch(one) {
    const box = h("input", { type: "checkbox", checked: this.isOn(one), "data-overlay": one.id, onchange: async () => {
      this.choices.set(one.id, box.checked);
      await this.extent(one);
      this.paint();
    } });
    const jump = h("button", { type: "button", class: "plain", title: "go to the slice that shows most of it", onclick: async () => {
      await this.extent(one);
      if (!one.extent) return; // it is not made yet
      this.goTo(one);
      this.highlighted = null;
      this.moved = true;
      this.paint();
    } }, one.name);
    const isOfSide = ["predicted", "followed", "looked-at", "occlusion"].includes(one.role);
    const who = isOfSide ? `${ROLES[one.role]} ${one.source.toUpperCase()}` : ROLES[one.role];
    one.told = one.follows ? h("p", { class: "legend", role: "status" }) : null;
    this.tellFollowed(one);
    return h("div", { class: `switch ${one.role}`, style: { "--colour": this.colour(one) } },
      h("label", {}, box, h("i", { class: "swatch" }), h("span", { class: "unseen" }, `draw ${one.name}, ${who}`)),
      jump, h("span", { class: "faint" }, who), one.told ?? [one.fault ? h("span", { class: "bad" }, one.fault) : null,
        one.legend ? h("p", { class: "legend faint" }, h("i", { class: "scale" }), one.legend) : null]);
  }

  notes() {
    put(this.words, ...this.scene.notes.map((note) => h("p", { class: "faint" }, note)));
  }

  /** Draw all overlays, or none. */
  async toggleAll() {
    if (!this.scene?.planes) return;
    this.highlighted = null;
    const any = this.scene.overlays.some((one) => one.asked && this.isOn(one));
    for (const one of this.scene.overlays) if (one.asked || any) this.choices.set(one.id, !any);
    await this.extents();
    this.switches();
    this.paint();
  }

  /** Choose a window by its place in the row. */
  choose(number) {
    this.presets?.querySelectorAll("button")[number]?.click();
  }
}

/** Return a colour of the style sheet as three numbers. */
function rgb(element, colour) {
  const probe = h("i", { style: { color: colour } });
  element.append(probe);
  const found = getComputedStyle(probe).color.match(/\d+/g).slice(0, 3).map(Number);
  probe.remove();
  return found;
}
