"""Modules that mirror torch.nn's."""

from torch import Tensor, nn

from .functional import conv_transpose2d


class ConvTranspose2d(nn.ConvTranspose2d):
    """:class:`torch.nn.ConvTranspose2d`, computed by convt.

    Same constructor, parameters, initial values, ``state_dict`` and ``output_size`` argument; see torch's
    documentation. ``padding_mode`` other than "zeros" is a ValueError, as there.
    """

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if self.padding_mode != "zeros":
            raise ValueError("Only `zeros` padding mode is supported for ConvTranspose2d")
        spatial_dims = 2
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, spatial_dims, self.dilation
        )
        return conv_transpose2d(
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups, self.dilation
        )


class LazyConvTranspose2d(nn.LazyConvTranspose2d):
    """:class:`torch.nn.LazyConvTranspose2d`; it becomes a :class:`convt.ConvTranspose2d` at its first input."""

    cls_to_become = ConvTranspose2d
    forward = ConvTranspose2d.forward
