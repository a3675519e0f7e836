// Command generate compiles the shaders with glslc and writes their manifest.
// It runs in the folder of package vulkan (go generate) and needs glslc and
// spirv-val on the path: Debian 12's packages glslc and spirv-tools will do.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// variants are the shaders that are compiled more than once: name, source, macros.
// Every other source is compiled once under its own name.
var variants = []struct {
	name, source string
	macros       []string
}{
	{"matmul1", "matmul.comp", []string{"NR=1", "NW=1", "TR=1", "GLU=0"}},
	{"matmul4", "matmul.comp", []string{"NR=4", "NW=2", "TR=1", "GLU=0"}},
	{"matmul8", "matmul.comp", []string{"NR=8", "NW=4", "TR=4", "GLU=0"}},
	{"gateup1", "matmul.comp", []string{"NR=1", "NW=2", "TR=1", "GLU=1"}},
	{"gateup4", "matmul.comp", []string{"NR=4", "NW=2", "TR=1", "GLU=1"}},
	{"gateup8", "matmul.comp", []string{"NR=8", "NW=4", "TR=4", "GLU=1"}},
}

// manifest says what was compiled from what. Sums are sha256.
type manifest struct {
	Tool     string            `json:"tool"`
	Flags    []string          `json:"flags"`
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
	version, err := exec.Command("glslc", "--version").Output()
	if err != nil {
		return fmt.Errorf("ask glslc for its version: %w", err)
	}
	flags := []string{"--target-env=vulkan1.2", "-O"}
	m := manifest{
		Tool:  strings.Join(strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(version)), "\n", " ")), " "),
		Flags: flags, Sources: map[string]string{}, Binaries: map[string]string{},
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.spv"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.[cg]*"))
	if err != nil {
		return err
	}
	varied := map[string]bool{}
	compile := func(name, source string, macros []string) error {
		out := filepath.Join(dir, name+".spv")
		args := append([]string{}, flags...)
		for _, d := range macros {
			args = append(args, "-D"+d)
		}
		if text, err := exec.Command("glslc", append(args, filepath.Join(dir, source), "-o", out)...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", source, err, text)
		}
		if text, err := exec.Command("spirv-val", "--target-env", "vulkan1.2", out).CombinedOutput(); err != nil {
			return fmt.Errorf("validate %s: %w\n%s", name, err, text)
		}
		m.Binaries[name+".spv"], err = sum(out)
		return err
	}
	for _, v := range variants {
		varied[v.source] = true
		if err := compile(v.name, v.source, v.macros); err != nil {
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
			if err := compile(strings.TrimSuffix(base, ext), base, nil); err != nil {
				return err
			}
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
