"""A picture of a tree: what is drawn, and the page that draws it."""

from forkdecode.calls.picture.page import page
from forkdecode.calls.picture.records import Blocks, Picture, PictureNode

__all__ = ["Blocks", "Picture", "PictureNode", "page"]
