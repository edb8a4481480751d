"""The colours of methods, for the style sheet and the scripts of the page."""

COLOURS: tuple[tuple[str, str], ...] = (
    ("#2060df", "#6ea8fe"),
    ("#d95f0e", "#ff9f4f"),
    ("#158043", "#4dc47a"),
    ("#7a3be0", "#b898ff"),
    ("#cf2038", "#ff7285"),
    ("#d6409f", "#ff93d3"),
    ("#8a5a2b", "#d0a274"),
    ("#0a868c", "#40c8cc"),
    ("#75760f", "#c3c252"),
    ("#b78700", "#efc94c"),
    ("#16202c", "#f2f5f9"),
    ("#1596cc", "#6fd3ff"),
    ("#84888f", "#a4abb5"),  # grey
)
"""Each colour on a light and on a dark page. The last one is grey, for anything that does not belong to one method."""
HUES = len(COLOURS)
SHADES = 3
"""Number of shades of each colour, which `assets/page.css` derives."""


def as_css() -> str:
    """Return each colour as a variable and as a class: `--h0` and `.h0`, and so on."""
    variables = "".join(f" --h{n}: light-dark({light}, {dark});" for n, (light, dark) in enumerate(COLOURS))
    classes = "".join(f".h{n} {{ --base: var(--h{n}); }}\n" for n in range(HUES))
    return f":root {{{variables} }}\n{classes}"
