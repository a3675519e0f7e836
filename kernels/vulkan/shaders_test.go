//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The manifest matches the committed sources and binaries.
func TestManifest(t *testing.T) {
	type compiler struct {
		Tool  string
		Flags []string
	}
	var m struct {
		compiler
		Matrices          compiler
		Sources, Binaries map[string]string
	}
	data, err := os.ReadFile("shaders/manifest.json")
	ok(t, err)
	ok(t, json.Unmarshal(data, &m))
	for _, c := range []compiler{m.compiler, m.Matrices} {
		if c.Tool == "" || len(c.Flags) == 0 {
			t.Error("the manifest does not name the tools and their flags")
		}
	}
	compare := func(kind string, listed map[string]string, patterns ...string) {
		found := 0
		for _, p := range patterns {
			files, err := filepath.Glob("shaders/" + p)
			ok(t, err)
			for _, f := range files {
				found++
				data, err := os.ReadFile(f)
				ok(t, err)
				s := sha256.Sum256(data)
				if want, got := listed[filepath.Base(f)], hex.EncodeToString(s[:]); want != got {
					t.Errorf("%s %s: the manifest has %q, the file is %s; run go generate", kind, f, want, got)
				}
			}
		}
		if found != len(listed) || found == 0 {
			t.Errorf("%d %s files, the manifest lists %d; run go generate", found, kind, len(listed))
		}
	}
	compare("source", m.Sources, "*.comp", "*.glsl")
	compare("binary", m.Binaries, "*.spv")
}

// TestNoContraction: no sum of a shader may be fused with a product of which the source says
// that it is rounded by itself. glslc's optimiser forgets that where it unrolls a loop, and
// then fuses them; loops around such sums therefore have bounds that it does not know.
func TestNoContraction(t *testing.T) {
	files, err := filepath.Glob("shaders/*.spv")
	ok(t, err)
	if len(files) == 0 {
		t.Fatal("there are no shaders")
	}
	for _, f := range files {
		code, err := os.ReadFile(f)
		ok(t, err)
		if found := contractions(code, false); len(found) > 0 {
			t.Errorf("%s: %v", f, found)
		}
	}
	code, err := os.ReadFile("shaders/rope.spv")
	ok(t, err)
	if len(contractions(code, true)) == 0 {
		t.Error("without its decorations rope.spv passes, too")
	}
}

// contractions lists the operations of a SPIR-V module that a driver may fuse, or that show
// that the optimiser has: differences, and products followed by a sum, that lack
// NoContraction. With bare, all lack it.
func contractions(code []byte, bare bool) (found []string) {
	const (
		header, noContraction, fma               = 5, 42, 50
		opExtInst, opDecorate                    = 12, 71
		opFAdd, opFSub, opFMul, opVecTimesScalar = 129, 131, 133, 142
	)
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	kept, products := map[uint32]bool{}, map[uint32]bool{}
	for _, sums := range []bool{false, true} { // a sum may come before a decoration or a product
		for at := header; at < len(words); at += int(words[at] >> 16) {
			in := words[at : at+int(words[at]>>16)]
			op := in[0] & 0xffff
			switch {
			case !sums && op == opDecorate && in[2] == noContraction && !bare:
				kept[in[1]] = true
			case !sums && (op == opFMul || op == opVecTimesScalar):
				products[in[2]] = true
			case sums && op == opFSub && !kept[in[2]]:
				found = append(found, fmt.Sprintf("the difference %%%d", in[2]))
			case sums && (op == opFAdd || op == opFSub || op == opExtInst && in[4] == fma):
				operands := in[3:]
				if op == opExtInst {
					operands = in[len(in)-1:]
				}
				for _, x := range operands {
					if products[x] && !kept[x] {
						found = append(found, fmt.Sprintf("the product %%%d in the sum %%%d", x, in[2]))
					}
				}
			}
		}
	}
	return found
}
