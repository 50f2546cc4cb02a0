"""The skill that each page needs: a table of ours, for tags, curricula and tables of results by skill."""

from __future__ import annotations

from collections.abc import Mapping

FAMILIES: Mapping[str, tuple[str, ...]] = {
    name: tuple(pages.split())
    for name, pages in {
        "button": "button-delay click-button click-button-sequence click-dialog click-dialog-2 click-test click-test-2"
        " click-test-transfer click-widget focus-text focus-text-2 generate-number unicode-test",
        "link": "click-link click-collapsible click-collapsible-2 click-collapsible-2-nodelay click-collapsible-nodelay"
        " click-tab click-tab-2 click-tab-2-easy click-tab-2-hard click-tab-2-medium",
        "menu": "click-menu click-menu-2 click-pie click-pie-nodelay navigate-tree",
        "select": "choose-list click-checkboxes click-checkboxes-large click-checkboxes-soft"
        " click-checkboxes-transfer click-option click-scroll-list number-checkboxes odd-or-even",
        "type": "enter-password enter-text enter-text-2 enter-text-dynamic login-user login-user-popup text-transform"
        " use-autocomplete use-autocomplete-nodelay",
        "form": "form-sequence form-sequence-2 form-sequence-3 multi-layouts multi-orderings sign-agreement",
        "date": "choose-date choose-date-easy choose-date-medium choose-date-nodelay daily-calendar enter-date"
        " enter-time",
        "slider": "use-colorwheel use-colorwheel-2 use-slider use-slider-2 use-spinner",
        "text": "copy-paste copy-paste-2 find-word highlight-text highlight-text-2 read-table read-table-2"
        " resize-textarea scroll-text scroll-text-2 text-editor",
        "drag": "drag-box drag-circle drag-cube drag-items drag-items-grid drag-shapes drag-shapes-2"
        " drag-single-shape drag-sort-numbers",
        "canvas": "bisect-angle chase-circle circle-center click-color click-shades click-shape count-shape"
        " count-sides draw-circle draw-line find-midpoint grid-coordinate hot-cold hover-shape identify-shape"
        " moving-items right-angle visual-addition",
        "puzzle": "ascending-numbers find-greatest guess-number simon-says simple-algebra simple-arithmetic"
        " tic-tac-toe",
        "email": "email-inbox email-inbox-delete email-inbox-forward email-inbox-forward-nl"
        " email-inbox-forward-nl-turk email-inbox-important email-inbox-nl-turk email-inbox-noscroll"
        " email-inbox-reply email-inbox-star-reply",
        "social": "social-media social-media-all social-media-some",
        "search": "phone-book search-engine",
        "booking": "book-flight book-flight-nodelay buy-ticket order-food stock-market",
        "terminal": "terminal",
    }.items()
}


def family_of(page: str) -> str:
    """Returns the family of a page; "other" for a page that a later version of the package adds."""
    return next((name for name, pages in FAMILIES.items() if page in pages), "other")
