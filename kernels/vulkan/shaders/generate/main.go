// Command generate compiles the shaders with glslc and writes their manifest.
// It runs in the folder of package vulkan (go generate) and needs glslc and
// spirv-val on the path: Debian 12's packages glslc and spirv-tools will do, except for
// shaders with cooperative matrices of bf16. Those need a newer shaderc (2026.4 will
// do, 2025.2 will not). GLSLC_NEW and SPIRV_VAL_NEW name its programs and may include
// leading arguments:
//
//	new=$PWD/scripts/vulkan-new
//	LUKV_VULKAN_SUITE=sid GLSLC_NEW="$new glslc" SPIRV_VAL_NEW="$new spirv-val" go generate ./kernels/vulkan
package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// variants are the shaders that are compiled more than once, or in a different way:
// name, source, macros. Every other source is compiled once under its own name.
var variants = []struct {
	name, source string
	macros       []string
	matrices     bool
}{
	{"matmul1", "matmul.comp", []string{"NR=1", "NW=1", "TR=1", "GLU=0"}, false},
	{"matmul4", "matmul.comp", []string{"NR=4", "NW=2", "TR=1", "GLU=0"}, false},
	{"matmul8", "matmul.comp", []string{"NR=8", "NW=4", "TR=4", "GLU=0"}, false},
	{"gateup1", "matmul.comp", []string{"NR=1", "NW=2", "TR=1", "GLU=1"}, false},
	{"gateup4", "matmul.comp", []string{"NR=4", "NW=2", "TR=1", "GLU=1"}, false},
	{"gateup8", "matmul.comp", []string{"NR=8", "NW=4", "TR=4", "GLU=1"}, false},
	{"matrixbf16", "matrix.comp", []string{"BF16_MATRICES=1"}, true},
	{"matrixf16", "matrix.comp", []string{"BF16_MATRICES=0"}, true},
}

// compiler says how one kind of shaders is compiled.
type compiler struct {
	Tool  string   `json:"tool"`
	Flags []string `json:"flags"`

	glslc, validate []string
}

// newCompiler returns a compiler with the given programs and asks glslc for its version.
func newCompiler(glslc, validate, target string, flags ...string) (*compiler, error) {
	c := &compiler{
		glslc: strings.Fields(glslc), validate: append(strings.Fields(validate), "--target-env", target),
		Flags: append([]string{"--target-env=" + target}, flags...),
	}
	version, err := run(c.glslc, "--version")
	c.Tool = strings.Join(strings.Fields(version), " ")
	return c, err
}

func (c *compiler) compile(in, out string, macros []string) error {
	args := append([]string{}, c.Flags...)
	for _, d := range macros {
		args = append(args, "-D"+d)
	}
	if _, err := run(c.glslc, append(args, in, "-o", out)...); err != nil {
		return err
	}
	_, err := run(c.validate, out)
	return err
}

func run(command []string, args ...string) (string, error) {
	args = append(command[1:len(command):len(command)], args...)
	text, err := exec.Command(command[0], args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", command[0], strings.Join(args, " "), err, text)
	}
	return string(text), nil
}

// manifest records what was compiled from what, and how: plain shaders, and those with
// cooperative matrices. Sums are SHA-256.
type manifest struct {
	*compiler
	Matrices *compiler         `json:"matrices"`
	Sources  map[string]string `json:"sources"`
	Binaries map[string]string `json:"binaries"`
}

func main() {
	if err := generate("shaders"); err != nil {
		fmt.Fprintln(os.Stderr, "compile shaders:", err)
		os.Exit(1)
	}
}

func generate(dir string) error {
	plain, err := newCompiler("glslc", "spirv-val", "vulkan1.2", "-O")
	if err != nil {
		return err
	}
	matrices, err := newCompiler(cmp.Or(os.Getenv("GLSLC_NEW"), "glslc"), cmp.Or(os.Getenv("SPIRV_VAL_NEW"), "spirv-val"), "vulkan1.3")
	if err != nil {
		return err
	}
	m := manifest{compiler: plain, Matrices: matrices, Sources: map[string]string{}, Binaries: map[string]string{}}
	made, err := os.MkdirTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made)
	sources, err := filepath.Glob(filepath.Join(dir, "*.[cg]*"))
	if err != nil {
		return err
	}
	varied := map[string]bool{}
	compile := func(c *compiler, name, source string, macros []string) error {
		out := filepath.Join(made, name+".spv")
		if err := c.compile(filepath.Join(dir, source), out, macros); err != nil {
			return err
		}
		var err error
		m.Binaries[name+".spv"], err = sum(out)
		return err
	}
	for _, v := range variants {
		varied[v.source] = true
		c := plain
		if v.matrices {
			c = matrices
		}
		if err := compile(c, v.name, v.source, v.macros); err != nil {
			return err
		}
	}
	for _, file := range sources {
		base := filepath.Base(file)
		ext := filepath.Ext(base)
		if ext != ".comp" && ext != ".glsl" {
			continue
		}
		if m.Sources[base], err = sum(file); err != nil {
			return err
		}
		if ext == ".comp" && !varied[base] {
			if err := compile(plain, strings.TrimSuffix(base, ext), base, nil); err != nil {
				return err
			}
		}
	}
	// All of them compiled: they replace the old ones.
	old, err := filepath.Glob(filepath.Join(dir, "*.spv"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	for name := range m.Binaries {
		if err := os.Rename(filepath.Join(made, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	data, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), append(data, '\n'), 0o644)
}

func sum(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:]), nil
}
