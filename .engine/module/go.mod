// What containerlab is built from, pinned: go build -mod=readonly github.com/srl-labs/containerlab in this directory.
// To move on: go get github.com/srl-labs/containerlab@vX.Y.Z && go build -mod=mod ...,
// and RELEASE in heddle/host/engine/binary.py.
module heddle.invalid/containerlab

go 1.26.0

require github.com/srl-labs/containerlab v0.79.0
