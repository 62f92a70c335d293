"""The peer's side of `pytorch.py`: trains a network in PyTorch when told to.

    PEER pytorch_worker.py '{"network": "resnet50", "batchsize": 16, "side": 224, "way": "plain", "threads": 2, ...}'

It runs under the peer's Python and imports torch, torchvision and the standard library. The ways:

    plain          as PyTorch trains by default
    channels_last  network and images in that memory format
    checkpoint     segments computed a second time (torch.utils.checkpoint); `pytorch_networks.py` says which
    file           what autograd saves is written to a file and read back (torch.autograd.graph.saved_tensors_hooks)

Source: PyTorch's documentation of each; `file` is its example of saving to disk, with one file in place of one for each
tensor.
"""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import sys
import tempfile

from turn_worker import SETTLE, Voice, limit_memory, memory_bytes

LEARNING_RATE = 1e-5  # the batch is noise: a larger one diverges
LEAST_BYTES = 1 << 16  # what is smaller stays in memory


def main() -> None:
    voice, row = Voice(), json.loads(sys.argv[1])
    limit_memory(row['limit_bytes'])
    import torch

    from pytorch_networks import build

    torch.set_num_threads(row['threads'])
    torch.manual_seed(0)
    imported_bytes = memory_bytes('VmRSS')
    model = build(row['network'], row['side'], row['way'] == 'checkpoint')
    images = torch.randn(row['batchsize'], 3, row['side'], row['side'])
    if row['way'] == 'channels_last':
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    about = {'parameters': sum(each.numel() for each in model.parameters()), 'layers': layers(torch, model, images[:1]),
             'imported_bytes': imported_bytes, 'versions': versions(torch)}
    iterate = training(torch, row, model, images)
    for _ in range(SETTLE if row['settle'] else 0):
        iterate()
    voice.say({**about, 'peak_bytes': memory_bytes('VmHWM')})
    voice.serve(iterate)


def training(torch, row, model, images):
    """Makes the function that runs one iteration of momentum SGD."""
    from pytorch_networks import loss_of

    labels = torch.arange(row['batchsize']) % 1000
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    saved = SavedToFile(torch, row['spill_dir'], [*model.parameters(), images]) if row['way'] == 'file' else None

    def iterate() -> float:
        with saved.hooks() if saved else contextlib.nullcontext():
            loss = loss_of(model(images), labels)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    model.train()
    return iterate


class SavedToFile:
    """Saved tensors in one temporary file, written as they are saved and read as backward asks for them.

    A tensor that two functions save is written twice, as PyTorch calls the hook twice. The file is written anew from
    its beginning in each iteration.

    Args:
        torch: The module.
        folder: Of the file; None is the temporary folder.
        staying: Tensors that live on anyway: what shares memory with one of them is not written.
    """

    def __init__(self, torch, folder, staying) -> None:
        self._torch = torch
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  as long as the process lives
        self._staying = {tensor.untyped_storage().data_ptr() for tensor in staying}
        self._end = 0

    def hooks(self):
        """The context of an iteration."""
        self._end = 0
        return self._torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor):
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes < LEAST_BYTES or tensor.untyped_storage().data_ptr() in self._staying:
            return tensor
        dense = self._torch.empty_like(tensor, device='meta')  # the same strides, unless there are gaps or overlaps
        if dense.stride() != tensor.stride():
            tensor = tensor.contiguous()
            dense = self._torch.empty_like(tensor, device='meta')
        offset, self._end = self._end, self._end + nbytes
        if os.pwrite(self._file.fileno(), memory_of(tensor, nbytes), offset) != nbytes:
            raise OSError(f'only a part of {nbytes} bytes was written')
        return offset, nbytes, dense

    def _unpack(self, packed):
        if isinstance(packed, self._torch.Tensor):
            return packed
        offset, nbytes, dense = packed
        tensor = self._torch.empty_like(dense, device='cpu')
        if os.preadv(self._file.fileno(), [memory_of(tensor, nbytes)], offset) != nbytes:
            raise OSError(f'only a part of {nbytes} bytes was read')
        return tensor


def memory_of(tensor, nbytes):
    """The bytes of a dense tensor, without NumPy."""
    return (ctypes.c_char * nbytes).from_address(tensor.data_ptr())


def layers(torch, model, image):
    """Shapes of the weights and outputs of all layers with weights, for one image."""
    found = []

    def note(module, _, output) -> None:
        found.append([list(module.weight.shape), list(output.shape)])

    handles = [module.register_forward_hook(note) for module in model.modules()
               if isinstance(module, torch.nn.Conv2d | torch.nn.Linear | torch.nn.BatchNorm2d)]
    with torch.no_grad():
        model.eval()(image)
    for handle in handles:
        handle.remove()
    return found


def versions(torch):
    """Of PyTorch and the oneDNN that it was built with."""
    onednn = re.search(r'(?:MKL-DNN|oneDNN) v([\w.]+)', torch.__config__.show(), re.IGNORECASE)
    return {'torch': torch.__version__, 'oneDNN': onednn[1] if onednn else 'none'}


if __name__ == '__main__':
    main()
