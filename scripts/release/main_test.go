package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var files = []entry{{"lukv", []byte("program"), true}, {"README.md", []byte("text"), false}, {"man/lukv.1", []byte("manual"), false}}

// Archives hold the files with their modes, and the same bytes for any order of files.
func TestArchives(t *testing.T) {
	when := time.Unix(1700000000, 0)
	backwards := slices.Clone(files)
	slices.Reverse(backwards)
	for name, pack := range map[string]func([]entry, time.Time) ([]byte, error){"tar": tarGzip, "zip": zipped} {
		a, err := pack(files, when)
		if err != nil {
			t.Fatal(err)
		}
		b, err := pack(backwards, when.In(time.FixedZone("elsewhere", 3600)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s: other bytes for another order and time zone", name)
		}
	}
	data, _ := tarGzip(files, when)
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "lukv" && h.Mode != 0o755 || h.Uid != 0 || !h.ModTime.Equal(when) {
			t.Errorf("found %+v", h)
		}
		list = append(list, h.Name+"="+string(text))
	}
	if want := []string{"README.md=text", "lukv=program", "man/lukv.1=manual"}; !slices.Equal(list, want) {
		t.Errorf("found %q, expected %q", list, want)
	}
	data, _ = zipped(files, when)
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil || len(r.File) != 3 {
		t.Fatal(err, r)
	}
}

// The formula and the image name the archives with their digests.
func TestTemplates(t *testing.T) {
	r := release{Version: "1.2.3", Archives: map[string]archived{}}
	for _, x := range targets {
		r.Archives[x.String()] = archived{"lukv_1.2.3_" + x.String() + ".tar.gz", "digest of " + x.String()}
	}
	dir := t.TempDir()
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	formula, err := os.ReadFile(filepath.Join(dir, "lukv.rb"))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []string{"darwin_arm64", "darwin_amd64", "linux_arm64", "linux_amd64"} {
		url := `url "https://github.com/lukv/lukv/releases/download/v1.2.3/lukv_1.2.3_` + x + `.tar.gz"`
		if !strings.Contains(string(formula), url) || !strings.Contains(string(formula), `sha256 "digest of `+x+`"`) {
			t.Errorf("%s is missing in\n%s", x, formula)
		}
	}
	image, err := os.ReadFile(filepath.Join(dir, "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(image), "FROM scratch") || !strings.Contains(string(image), "ADD lukv_1.2.3_linux_${TARGETARCH}_static.tar.gz /") {
		t.Errorf("found %s", image)
	}
	delete(r.Archives, "darwin_arm64")
	if err := r.write(dir); err == nil {
		t.Error("a formula without an archive was written")
	}
}

// A release needs a clean commit with the tag of the changelog's newest version.
func TestSource(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		run := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"}, args...)...)
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q")
	if err := os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte("# Changelog\n\n## 0.2.0\n\n## 0.1.0\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	expect := func(snapshot bool, want string) *source {
		t.Helper()
		s, err := readSource(dir, snapshot)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Fatalf("found error %v, expected %q", err, want)
		}
		return s
	}
	expect(true, "not committed")
	git("add", ".")
	git("commit", "-q", "-m", "one")
	expect(false, "expected v0.2.0")
	if s := expect(true, ""); s.version != "0.2.0-snapshot."+s.revision[:12] || s.time.IsZero() {
		t.Errorf("found %+v", s)
	}
	git("tag", "v0.1.0")
	expect(false, "expected v0.2.0")
	git("tag", "v0.2.0")
	if s := expect(false, ""); s.version != "0.2.0" {
		t.Errorf("found %+v", s)
	}
}
