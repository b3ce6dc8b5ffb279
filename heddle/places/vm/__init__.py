"""The place `vm`: a virtual machine with Debian's full kernel, which runs the same verbs.

    kernels.py    the kernels to choose from
    packages.py   what the guest has installed
    image.py      the cached image: its name is a hash of its inputs
    build.py      mmdebstrap -> disk, kernel, initramfs
    initramfs.py  the modules that the guest needs to find its disk, as a cpio archive
    keys.py       keys of the guest and of its user, made for each boot
    qemu.py       the command line of QEMU, and how a boot ends
    guest.py      one running guest: start, find, end
    place.py      the guest as a place that verbs run in

The guest's own scripts are in templates/vm/.
"""
