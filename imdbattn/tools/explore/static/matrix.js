// A matrix with named rows and columns, drawn on a canvas: attention weights, or products of positions.
// A matrix with more rows or columns than can be labelled has an overview; dragging in it moves the labelled part.

import { t } from "./texts.js";
import { channels, color, el, mixed, percent, quoted } from "./tools.js";

const CELLS = [13, 26]; // smallest and largest side of a cell in pixels
const SHOWN = 20; // rows and columns with names
const ROOM = 265; // pixels that the cells of a row fill if there are few
const SIDE = 240; // pixels of the overview
const LEVELS = 255; // colors of the overview in addition to that of 0
const LABEL = 74; // pixels of a name
const FONT = "11px system-ui, sans-serif";
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class Matrix {
  /**
   * title: for screen readers. signed: whether values may be negative. format: value -> text.
   * onRow(row or null, pinned): the row under the pointer or with the focus; pinned by a click or a key.
   * onCell(row, column), or with null: a cell was chosen by a click or a key, or no longer is.
   */
  constructor({ title, signed = false, format = percent, names = ["query", "key"], onRow = () => {}, onCell = null }) {
    Object.assign(this, { title, signed, format, names, onRow, onCell });
    this.top = this.left = 0;
    this.at = null; // [row, column] with the pointer or the focus
    this.pinned = null; // row
    this.chosen = null; // [row, column]
    this.most = 1;
    const describe = { tabindex: 0, role: "application", "aria-roledescription": "map" };
    this.detail = el("canvas", { ...describe, "aria-label": t(onCell ? "{title}: arrow keys move, Enter shows the arithmetic of a cell" : "{title}: arrow keys move, Enter pins a row", { title }) });
    this.overview = el("canvas", { class: "overview", "aria-hidden": "true" });
    this.line = el("p", { class: "at", "aria-live": "polite" });
    this.element = el("div", {}, el("div", { class: "map" }, this.detail, this.overview), this.line);
    this.listen();
  }

  /** values: Float32Array, in row-major order. */
  show(rows, columns, values) {
    Object.assign(this, { rows, columns, values });
    this.cell = Math.min(CELLS[1], Math.max(CELLS[0], Math.floor(ROOM / columns.length)));
    this.height = Math.min(rows.length, SHOWN);
    this.width = Math.min(columns.length, SHOWN);
    this.large = rows.length > SHOWN || columns.length > SHOWN;
    this.overview.hidden = !this.large;
    this.top = Math.min(this.top, rows.length - this.height);
    this.left = Math.min(this.left, columns.length - this.width);
    this.pinned = this.pinned !== null && this.pinned < rows.length ? this.pinned : null;
    this.at = null;
    this.describe();
  }

  /** The largest absolute value. */
  largest() {
    let most = 0;
    for (const value of this.values) most = Math.max(most, Math.abs(value));
    return most;
  }

  value(row, column) {
    return this.values[row * this.columns.length + column];
  }

  /** most: the value with the full color. */
  draw(most = this.most) {
    this.most = most || 1;
    const full = channels(color("--most"));
    const scale = { none: channels(color("--least")), full, negative: this.signed ? channels(color("--negative")) : full };
    this.drawDetail(scale);
    if (this.large) this.drawOverview(scale);
  }

  /** The color of a value: on a square-root scale, so that small weights stay visible. */
  shade(value, scale) {
    return mixed(scale.none, value < 0 ? scale.negative : scale.full, this.share(value));
  }

  share(value) {
    return Math.min(1, Math.sqrt(Math.abs(value) / this.most));
  }

  /** The pixels of all shares, LEVELS + 1 from 0 to 1. */
  palette(sign, scale) {
    return Uint32Array.from({ length: LEVELS + 1 }, (_, level) => {
      const [red, green, blue] = mixed(scale.none, sign < 0 ? scale.negative : scale.full, level / LEVELS);
      return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
    });
  }

  drawDetail(scale) {
    const { cell } = this;
    const [left, above] = [this.room(this.rows, this.top, this.height), this.room(this.columns, this.left, this.width)];
    const pen = prepared(this.detail, left + this.width * cell + 2, above + this.height * cell + 2);
    this.origin = [left, above];
    pen.font = FONT;
    pen.textBaseline = "middle";
    for (let row = 0; row < this.height; row++) {
      for (let column = 0; column < this.width; column++) {
        pen.fillStyle = `rgb(${this.shade(this.value(this.top + row, this.left + column), scale)})`;
        pen.fillRect(left + column * cell, above + row * cell, cell - 1, cell - 1);
      }
    }
    const ink = color("--ink");
    const [atRow, atColumn] = this.at ?? [this.pinned, null];
    for (let row = 0; row < this.height; row++) {
      pen.fillStyle = this.top + row === atRow ? color("--focus") : ink;
      pen.textAlign = "right";
      pen.fillText(fitted(pen, this.rows[this.top + row], left - 6), left - 4, above + (row + 0.5) * cell);
    }
    for (let column = 0; column < this.width; column++) {
      pen.save();
      pen.translate(left + (column + 0.5) * cell, above - 4);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillStyle = this.left + column === atColumn ? color("--focus") : ink;
      pen.fillText(fitted(pen, this.columns[this.left + column], above - 6), 0, 0);
      pen.restore();
    }
    pen.strokeStyle = color("--focus");
    pen.lineWidth = 1.5;
    if (atRow !== null && atRow >= this.top && atRow < this.top + this.height) {
      pen.strokeRect(left - 1, above + (atRow - this.top) * cell - 1, this.width * cell + 1, cell + 1);
    }
    if (atColumn !== null && atColumn >= this.left && atColumn < this.left + this.width) {
      pen.strokeRect(left + (atColumn - this.left) * cell - 1, above - 1, cell + 1, this.height * cell + 1);
    }
    const [row, column] = this.chosen ? [this.chosen[0] - this.top, this.chosen[1] - this.left] : [-1, -1];
    if (row >= 0 && row < this.height && column >= 0 && column < this.width) {
      pen.lineWidth = 2.5;
      pen.strokeStyle = ink;
      pen.strokeRect(left + column * cell - 0.5, above + row * cell - 0.5, cell, cell);
    }
  }

  /** The room for the longest name, in pixels. */
  room(names, from, size) {
    const pen = this.detail.getContext("2d");
    pen.font = FONT;
    const widths = names.slice(from, from + size).map((name) => pen.measureText(name).width);
    return Math.ceil(Math.min(LABEL, Math.max(8, ...widths) + 8));
  }

  /** The whole matrix; each pixel has the largest value of its part. */
  drawOverview(scale) {
    const [rows, columns] = [this.rows.length, this.columns.length];
    const [high, wide] = [rows === 1 ? 14 : SIDE, SIDE];
    if (this.pooledFrom !== this.values) {
      this.pooled = pooled(this.values, rows, columns, high, wide);
      this.pooledFrom = this.values;
    }
    this.overview.width = wide;
    this.overview.height = high;
    const pen = this.overview.getContext("2d");
    const image = pen.createImageData(wide, high);
    const pixels = new Uint32Array(image.data.buffer);
    const [full, negative] = [1, -1].map((sign) => this.palette(sign, scale));
    this.pooled.forEach((value, i) => (pixels[i] = (value < 0 ? negative : full)[Math.round(LEVELS * this.share(value))]));
    pen.putImageData(image, 0, 0);
    pen.strokeStyle = color("--focus");
    pen.lineWidth = 2;
    const [x, y] = [(this.left / columns) * wide, (this.top / rows) * high];
    pen.strokeRect(x + 1, y + 1, Math.max(6, (this.width / columns) * wide) - 2, Math.max(6, (this.height / rows) * high) - 2);
  }

  listen() {
    const canvas = this.detail;
    canvas.addEventListener("pointermove", (event) => this.move(this.cellAt(event)));
    canvas.addEventListener("pointerleave", () => this.move(null));
    canvas.addEventListener("click", (event) => this.pin(...(this.cellAt(event) ?? [null, null])));
    canvas.addEventListener("blur", () => this.move(null));
    canvas.addEventListener("keydown", (event) => this.press(event));
    const drag = (event) => {
      if (event.buttons !== 1) return;
      const box = this.overview.getBoundingClientRect();
      const row = ((event.clientY - box.top) / box.height) * this.rows.length;
      const column = ((event.clientX - box.left) / box.width) * this.columns.length;
      this.scroll(Math.round(row - this.height / 2), Math.round(column - this.width / 2));
    };
    this.overview.addEventListener("pointerdown", (event) => {
      this.overview.setPointerCapture(event.pointerId);
      drag(event);
    });
    this.overview.addEventListener("pointermove", drag);
  }

  cellAt(event) {
    const column = Math.floor((event.offsetX - this.origin[0]) / this.cell);
    const row = Math.floor((event.offsetY - this.origin[1]) / this.cell);
    const inside = row >= 0 && row < this.height && column < this.width;
    return inside ? [this.top + row, column < 0 ? null : this.left + column] : null;
  }

  press(event) {
    const arrow = ARROWS[event.key];
    if (event.key === "Enter" || event.key === " ") this.pin(...(this.at ?? [0, null]));
    else if (event.key === "Escape") this.pin(null, null);
    else if (arrow) {
      const [row, column] = this.at ? [this.at[0] + arrow[0], (this.at[1] ?? 0) + arrow[1]] : [this.top, this.left];
      this.move([within(row, this.rows.length), within(column, this.columns.length)]);
    } else return;
    event.preventDefault();
  }

  move(at) {
    this.at = at;
    if (at) {
      const [row, column] = [at[0], at[1] ?? this.left];
      const top = Math.min(Math.max(this.top, row - this.height + 1), row);
      const left = Math.min(Math.max(this.left, column - this.width + 1), column);
      this.top = top;
      this.left = left;
    }
    this.draw();
    this.describe();
    this.onRow(at ? at[0] : this.pinned, false);
  }

  /** Pins a row and chooses a cell of it; the same again unpins it. */
  pin(row, column) {
    const cell = this.onCell && column !== null;
    const again = row === this.pinned && (!cell || (this.chosen?.[0] === row && this.chosen[1] === column));
    this.pinned = again ? null : row;
    if (this.onCell) this.onCell(...(cell && !again ? [row, column] : [null, null]));
    this.draw();
    this.describe();
    this.onRow(this.pinned, true);
  }

  scroll(top, left) {
    this.top = within(top, this.rows.length - this.height + 1);
    this.left = within(left, this.columns.length - this.width + 1);
    this.draw();
  }

  /** Shows the value under the pointer, and the largest values of its row. */
  describe() {
    const [row, column] = this.at ?? [this.pinned, null];
    if (row === null) {
      this.line.textContent = t("Point at a cell to read its value.");
      return;
    }
    const own = column === null ? "" : ` → ${quoted(this.columns[column])} ${this.format(this.value(row, column))};`;
    const largest = this.top3(row).map((key) => `${quoted(this.columns[key])} ${this.format(this.value(row, key))}`);
    this.line.textContent = `${t(this.names[0])} ${quoted(this.rows[row])}${own} ${t("largest: {values}", { values: largest.join(t(", ")) })}`;
  }

  top3(row) {
    return largestOf(this.values.subarray(row * this.columns.length, (row + 1) * this.columns.length), 3);
  }
}

/** The indices of the largest values, in order. */
export function largestOf(values, most) {
  return Array.from(values.keys()).sort((a, b) => values[b] - values[a]).slice(0, most);
}

function within(number, size) {
  return Math.min(Math.max(number, 0), size - 1);
}

/** The context of a canvas of this size in CSS pixels, sharp on every screen. */
function prepared(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.setProperty("width", `${width}px`);
  canvas.style.setProperty("height", `${height}px`);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

function fitted(pen, name, room) {
  let letters = Array.from(name);
  if (pen.measureText(name).width <= room) return name;
  while (letters.length > 1 && pen.measureText(`${letters.join("")}…`).width > room) letters = letters.slice(0, -1);
  return `${letters.join("")}…`;
}

/** The value with the largest absolute value in each part of a matrix that is divided into high x wide parts. */
function pooled(values, rows, columns, high, wide) {
  const parts = new Float32Array(high * wide);
  for (let y = 0; y < high; y++) {
    const top = Math.floor((y * rows) / high);
    const bottom = Math.max(top + 1, Math.floor(((y + 1) * rows) / high));
    for (let x = 0; x < wide; x++) {
      const left = Math.floor((x * columns) / wide);
      const right = Math.max(left + 1, Math.floor(((x + 1) * columns) / wide));
      let most = 0;
      for (let row = top; row < bottom; row++) {
        for (let column = left; column < right; column++) {
          const value = values[row * columns + column];
          if (Math.abs(value) > Math.abs(most)) most = value;
        }
      }
      parts[y * wide + x] = most;
    }
  }
  return parts;
}
