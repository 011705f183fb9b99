"""Tree sessions as callers see them, the same in process and through a server."""

from forkdecode.calls.tree.asynchronous import AsyncTree
from forkdecode.calls.tree.link import AsyncTreeLink, TreeLink
from forkdecode.calls.tree.node import Node
from forkdecode.calls.tree.stream import NodeStream
from forkdecode.calls.tree.sync import Tree

__all__ = ["AsyncTree", "AsyncTreeLink", "Node", "NodeStream", "Tree", "TreeLink"]
