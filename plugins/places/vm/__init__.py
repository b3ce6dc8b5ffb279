"""The place `vm`: a virtual machine with Debian's full kernel, which runs the same verbs.

    recipe.py      what an image is made of, and its name
    initramfs.py   the first programs of the guest, as cpio archives
    image.py       images of the cache: made once, removed when nothing uses them
    qemu.py        a process of QEMU, its console and its monitor
    guest.py       one running guest: boot, find, end
    place.py       the guest as a place that verbs run in

The guest's own scripts are in templates/vm/.
"""
