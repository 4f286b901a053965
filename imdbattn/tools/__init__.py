"""Tools on top of the core, which never imports them."""
