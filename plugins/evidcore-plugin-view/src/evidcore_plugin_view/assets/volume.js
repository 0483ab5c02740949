// A scan in three planes and 3D, drawn by NiiVue where there is WebGL 2; voxels are z, y, x as everywhere.
import { address, ask } from "./api.js";
import { h } from "./dom.js";

const STRONGEST = 255; // of a map
const TRANSLUCENT_BELOW_MIN = 1; // NiiVue's colormapType in which opacity is (value / cal_min) squared
const OPACITY = { drawn: 0.45, highlighted: 0.9, dimmed: 0.15 };

/** Return why a scan cannot be drawn in 3D here; empty where it can. */
export function refusal(scene) {
  if (scene.planes.axial.count < 2) return "A picture of one slice has no 3D.";
  if (!scene.niivue) return "3D needs NiiVue, which is not installed: run python -m evidcore_plugin_view.niivue. Slices are shown.";
  return hasWebGL() ? "" : "3D needs WebGL 2, which this browser does not offer. Slices are shown.";
}

let known = null;
function hasWebGL() {
  known ??= Boolean(document.createElement("canvas").getContext("webgl2"));
  return known;
}

/** Draws one scan and its overlays on a canvas that is kept from question to question. */
export class VolumeView {
  drawn = new Map(); // overlay id -> its volume in NiiVue
  work = Promise.resolve();

  /** `pointed` is called with { z, y, x }, value and place in mm, `windowed` with the two edges. */
  constructor(pointed, windowed) {
    Object.assign(this, { pointed, windowed });
    this.canvas = h("canvas", { "aria-label": "three planes and 3D", role: "img" });
    this.root = h("div", { class: "volume" }, this.canvas);
  }

  /** Draw what `state` holds: scene, window, at, and `shapes`: overlays with their colour and emphasis. */
  draw(state) {
    this.wanted = state;
    this.work = this.work.catch(() => {}).then(async () => {
      if (this.wanted !== state) return;
      this.isDrawing = true; // what NiiVue tells meanwhile is no click
      await this.update(state).finally(() => { this.isDrawing = false; });
    });
    return this.work;
  }

  async update({ scene, window: edges, at, shapes }) {
    if (!this.niivue) await this.begin();
    const { niivue } = this;
    if (this.scan !== scene.scan) {
      this.scan = null;
      this.drawn.clear();
      niivue.volumes = []; // loadVolumes would keep what it has loaded before
      const url = await bytes("volume.nii", scene.references);
      niivue.addVolume(await this.load({ url, name: "scan.nii", colormap: "gray", cal_min: edges[0], cal_max: edges[1] }));
      this.scan = scene.scan;
    }
    const { width, height } = scene.planes.axial;
    this.size = { y: height, x: width };
    for (const [key, volume] of this.drawn) {
      if (shapes.some((one) => shapeKey(scene, one) === key)) continue;
      niivue.removeVolume(volume);
      this.drawn.delete(key);
    }
    for (const one of shapes) await this.add(scene, one);
    const scan = niivue.volumes[0];
    [scan.cal_min, scan.cal_max] = edges;
    const drawn = shapes.map((one) => this.drawn.get(shapeKey(scene, one)));
    for (const [place, one] of shapes.entries()) drawn[place].opacity = OPACITY[one.emphasis];
    niivue.overlays = drawn.reverse(); // what is listed first lies on top
    niivue.volumes = [scan, ...niivue.overlays];
    niivue.updateGLVolume();
    niivue.scene.crosshairPos = niivue.vox2frac([this.size.x - 1 - at.sagittal, this.size.y - 1 - at.coronal, at.axial]);
    niivue.drawScene();
    this.root.dataset.painted = [at.axial, at.coronal, at.sagittal].join(" ");
    this.root.dataset.drawn = shapes.map((one) => one.id).join("|");
  }

  async begin() {
    const { MULTIPLANAR_TYPE, Niivue, NVImage, SHOW_RENDER } = await import("./niivue.js");
    this.load = (settings) => NVImage.loadFromUrl(settings);
    const niivue = new Niivue({
      dragAndDropEnabled: false, isRadiologicalConvention: true, sagittalNoseLeft: true, multiplanarShowRender: SHOW_RENDER.ALWAYS,
      multiplanarLayout: MULTIPLANAR_TYPE.GRID, multiplanarPadPixels: 6,
      show3Dcrosshair: true, crosshairColor: [1, 1, 1, 0.5], crosshairWidth: 0.4, crosshairGap: 6, logLevel: "error", viewModeHotKey: "", clipPlaneHotKey: "",
    });
    await niivue.attachToCanvas(this.canvas);
    this.canvas.removeAttribute("tabindex"); // its keys are the viewer's
    niivue.onLocationChange = ({ vox, mm, values }) => {
      if (this.isDrawing || !values.length) return;
      const voxel = { z: vox[2], y: this.size.y - 1 - vox[1], x: this.size.x - 1 - vox[0] };
      this.pointed(voxel, values[0].value, [mm[2], -mm[1], -mm[0]]);
    };
    niivue.onIntensityChange = ({ cal_min: low, cal_max: high }) => this.isDrawing || this.windowed([low, high]);
    this.niivue = niivue;
  }

  async add(scene, one) {
    const key = shapeKey(scene, one);
    if (this.drawn.has(key)) return;
    const [red, green, blue] = one.colour;
    const colormap = `colour-${red}-${green}-${blue}`;
    this.niivue.addColormap(colormap, { R: [red, red], G: [green, green], B: [blue, blue], A: [0, 255], I: [0, 255] });
    const url = await bytes("mask.nii", { ...scene.references, overlay: one.id });
    const isMap = one.role === "occlusion";
    const volume = await this.load({ url, name: "mask.nii", colormap, opacity: OPACITY.drawn, cal_min: 0, cal_max: isMap ? STRONGEST : 1 });
    if (isMap) {
      volume.cal_min = STRONGEST;
      volume.colormapType = TRANSLUCENT_BELOW_MIN;
      volume.img = volume.img.map((strength) => Math.round(Math.sqrt(strength * STRONGEST))); // which NiiVue squares
    }
    this.niivue.addVolume(volume);
    this.drawn.set(key, volume);
  }
}

/** Return a file of voxels; NiiVue takes it in place of an address, which it would ask for without the key. */
const bytes = async (name, query) => (await ask(address(name, query))).arrayBuffer();

/** An overlay of the data set is the same for every question about a scan; others belong to one answer. */
const shapeKey = (scene, one) => `${one.id} ${one.role === "truth" ? "" : JSON.stringify(scene.references)}`;
