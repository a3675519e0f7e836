package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// The document of a program names every module that the program holds, the toolchain and
// the program's own digest, and each once.
func TestDocument(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.1", Main: debug.Module{Path: "example.org/x", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "example.org/a", Version: "v1.0.0", Sum: "h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="},
			{Path: "example.org/b", Version: "v2.0.0", Replace: &debug.Module{Path: "example.org/c", Version: "v3.0.0"}},
		},
		Settings: []debug.BuildSetting{{Key: "GOOS", Value: "plan9"}},
	}
	d, err := newDocument(info, sha256.Sum256([]byte("program")), "x", "1.2.3", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	ids := map[string]bool{"SPDXRef-DOCUMENT": true}
	for _, p := range d.Packages {
		got = append(got, p.Name+" "+p.Version)
		if ids[p.ID] {
			t.Errorf("two elements are called %s", p.ID)
		}
		ids[p.ID] = true
	}
	if want := []string{"x 1.2.3", "example.org/a v1.0.0", "example.org/c v3.0.0", "Go standard library and runtime 1.26.1"}; !reflect.DeepEqual(got, want) {
		t.Errorf("found packages %q, expected %q", got, want)
	}
	for _, r := range d.Relationships {
		if !ids[r.From] || !ids[r.To] {
			t.Errorf("relationship %v names an element that does not exist", r)
		}
	}
	if len(d.Relationships) != 4 || d.Packages[0].Checksums[0].Value != hex.EncodeToString(func() []byte { s := sha256.Sum256([]byte("program")); return s[:] }()) {
		t.Errorf("found %v and %v", d.Relationships, d.Packages[0].Checksums)
	}
	if !strings.Contains(d.Packages[0].Comment, "GOOS=plan9") || d.Packages[0].Declared != "Apache-2.0" {
		t.Errorf("found %+v", d.Packages[0])
	}
	info.Deps[0].Sum = "h2:AA"
	if _, err := newDocument(info, [32]byte{}, "", "", time.Unix(0, 0)); err == nil || !strings.Contains(err.Error(), "example.org/a") {
		t.Errorf("found error %v, expected one that names the module", err)
	}
}

// The document of a real program is valid JSON, and the same each time.
func TestSBOM(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a, errA := sbom(program, "test", "1", time.Unix(0, 0))
	b, errB := sbom(program, "test", "1", time.Unix(0, 0))
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if !bytes.Equal(a, b) || !json.Valid(a) || !strings.Contains(string(a), `"created": "1970-01-01T00:00:00Z"`) {
		t.Error(string(a))
	}
	if _, err := sbom("sbom.go", "", "", time.Unix(0, 0)); err == nil {
		t.Error("a file that is not a program was described")
	}
}
