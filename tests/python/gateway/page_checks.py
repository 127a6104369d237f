"""What is asked of a page that people read: scripts that run in it, and its accessibility tree."""

from __future__ import annotations

import browser

# Names of elements, luminance and contrast as WCAG 2 defines them.
_COMMON = """
const nameOf = (element) => element.id || element.textContent.trim().slice(0, 40) || element.tagName;
const channels = (color) => color.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const groundOf = (element) => {
  const isClear = (each) => (channels(getComputedStyle(each).backgroundColor)[3] ?? 1) === 0;
  while (element && isClear(element)) element = element.parentElement;
  return getComputedStyle(element ?? document.body).backgroundColor;
};
const contrastOf = (...colors) => {
  const [dark, light] = colors.map((color) => luminance(channels(color))).sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
};
const isControl = (element) =>
  element.matches('a[href], button, input, textarea, select') && !element.disabled && element.checkVisibility();
"""

LOWEST_CONTRAST = (
    _COMMON
    + """
// The lowest contrast of text with the ground behind it, and the text. Of disabled controls none is asked.
let lowest = [99, ''];
for (const element of document.body.querySelectorAll('*')) {
  const own = element.value || [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || element.disabled || !element.checkVisibility() || element.closest('svg')) continue;
  const contrast = contrastOf(getComputedStyle(element).color, groundOf(element));
  if (contrast < lowest[0]) lowest = [contrast, nameOf(element)];
}
return lowest;
"""
)

LOWEST_CONTRAST_OF_EDGES = (
    _COMMON
    + """
// The same of what shows where a field or a button is.
let lowest = [99, ''];
for (const element of document.querySelectorAll('input, textarea, button')) {
  if (element.disabled || !element.checkVisibility()) continue;
  const contrast = contrastOf(getComputedStyle(element).borderTopColor, groundOf(element.parentElement));
  if (contrast < lowest[0]) lowest = [contrast, nameOf(element)];
}
return lowest;
"""
)

WIDER_THAN_WINDOW = """
// What has to be scrolled sideways: the page, or a part of it.
return [document.documentElement, ...document.body.querySelectorAll('*')]
  .filter((element) => element.checkVisibility() && !['TEXTAREA', 'INPUT'].includes(element.tagName))
  .filter((element) => element.scrollWidth > element.clientWidth && getComputedStyle(element).display !== 'inline')
  .map((element) => `${element.tagName} ${element.id} ${element.scrollWidth} > ${element.clientWidth}`);
"""

CONTROLS = (
    _COMMON
    + """
return [...document.querySelectorAll('*')].filter(isControl).map(nameOf);
"""
)

FOCUS = (
    _COMMON
    + """
// The element that has the focus; null: none has.
const element = document.activeElement;
if (element === document.body || element === null) return null;
const { left, right, top, bottom } = element.getBoundingClientRect();
const style = getComputedStyle(element);
return {
  element: nameOf(element),
  isInWindow: left >= 0 && right <= innerWidth && top >= 0 && bottom <= innerHeight,
  outlinePixels: style.outlineStyle === 'solid' ? parseFloat(style.outlineWidth) : 0,
  outlineContrast: contrastOf(style.outlineColor, groundOf(element.parentElement)),
};
"""
)

# Runs before the page's own scripts. Those that follow an input count as well, since Chromium takes the change of the
# window's size at the beginning for one.
COUNT_SHIFTS = """
window.shift = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.shift += entry.value;
}).observe({ type: 'layout-shift', buffered: true });
"""

SHIFT = """
await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
return window.shift;
"""

# Roles that say nothing without a name.
NAMED_ROLES = {
    "button", "form", "image", "img", "link", "list", "navigation", "progressbar", "region", "table", "textbox",
}  # fmt: skip


def accessible_nodes(page: browser.Page) -> list[tuple[str, str, int]]:
    """Role, name and level of the nodes that a screen reader reads, in order; level 0: it has none."""
    found = []
    for node in page.devtools("Accessibility.getFullAXTree")["nodes"]:
        if node.get("ignored"):
            continue
        levels = [each["value"]["value"] for each in node.get("properties", []) if each["name"] == "level"]
        name = node.get("name", {}).get("value", "")
        found.append((node["role"]["value"], name, int(levels[0]) if levels else 0))
    return found
