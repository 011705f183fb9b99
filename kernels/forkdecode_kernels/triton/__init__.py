"""The operations as Triton kernels. Imported only where a tensor lies on a GPU: the rest of the
package works where triton is missing.
"""
