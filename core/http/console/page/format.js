// Numbers with their units, as short as they can be read.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function number(value) {
  if (!value) return "0";
  if (Math.abs(value) >= 1000) return grouped.format(value);
  return String(+value.toPrecision(value < 1 ? 2 : 3));
}

export const plural = (count, word) => (count === 1 ? word : `${word}s`);
export const counted = (count, word) => `${number(count)} ${plural(count, word)}`;

// What of the last minute: from one a second on as a rate. [number, unit]
export function load(perSecond) {
  if (perSecond >= 1) return [number(perSecond), "/s"];
  return [number(Math.round(60 * perSecond)), "in the last minute"];
}

export function age(seconds) {
  if (seconds >= 7200) return `${Math.floor(seconds / 3600)} h`;
  return seconds >= 120 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds)} s`;
}

// [number, unit]
export function duration(us) {
  if (us >= 1e6) return [number(us / 1e6), "s"];
  if (us >= 1e3) return [number(us / 1e3), "ms"];
  return [number(us), "µs"];
}

export const durationText = (us) => duration(us).join(" ");

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 1000 && power < units.length - 1) { value /= 1000; power += 1; }
  return [number(value), units[power]];
}

export const percent = (share) => `${Math.round(100 * share)}`;

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
