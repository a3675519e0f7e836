package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// sbom returns the SPDX document of a Go program: the modules that the linker recorded in
// it, with their versions and checksums. It reads the program, not the source tree, so
// that it lists exactly the contents of the program.
func sbom(program, name, version string, created time.Time) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	d, err := newDocument(info, sha256.Sum256(data), name, version, created)
	if err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(d, "", "  ")
	return append(out, '\n'), err
}

// document is an SPDX 2.3 document; see https://spdx.github.io/spdx-spec/v2.3/.
type document struct {
	Version       string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []pkg          `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type pkg struct {
	ID         string      `json:"SPDXID"`
	Name       string      `json:"name"`
	Version    string      `json:"versionInfo"`
	Download   string      `json:"downloadLocation"`
	Analyzed   bool        `json:"filesAnalyzed"`
	Concluded  string      `json:"licenseConcluded"`
	Declared   string      `json:"licenseDeclared"`
	Copyright  string      `json:"copyrightText"`
	Purpose    string      `json:"primaryPackagePurpose"`
	Checksums  []checksum  `json:"checksums,omitempty"`
	References []reference `json:"externalRefs,omitempty"`
	Comment    string      `json:"comment,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Kind string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const (
	none    = "NOASSERTION"
	license = "Apache-2.0"
)

// newDocument describes a program with the given SHA-256 digest.
func newDocument(info *debug.BuildInfo, digest [32]byte, name, version string, created time.Time) (*document, error) {
	sum := hex.EncodeToString(digest[:])
	d := &document{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name + "-" + version,
		Namespace: "https://" + info.Main.Path + "/spdx/" + version + "/" + sum,
		Creation:  creation{created.UTC().Format(time.RFC3339), []string{"Tool: " + info.Main.Path + "/scripts/release"}},
	}
	const program = "SPDXRef-Program"
	d.Packages = append(d.Packages, pkg{
		ID: program, Name: name, Version: version, Download: none, Concluded: license, Declared: license, Copyright: none,
		Purpose: "APPLICATION", Checksums: []checksum{{"SHA256", sum}}, Comment: settings(info),
	})
	d.Relationships = append(d.Relationships, relationship{d.ID, "DESCRIBES", program})
	add := func(id, name, version, locator, h1 string) error {
		p := pkg{
			ID: id, Name: name, Version: version, Download: none, Concluded: none, Declared: none, Copyright: none, Purpose: "LIBRARY",
			References: []reference{{"PACKAGE-MANAGER", "purl", locator}},
		}
		if h1 != "" {
			// The checksum of go.sum: of the module's file names and digests, not of an archive.
			raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(h1, "h1:"))
			if err != nil || len(raw) != 32 {
				return fmt.Errorf("module %s: found checksum %q, expected h1: and 32 bytes", name, h1)
			}
			p.Comment = "go.sum: " + h1
		}
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, relationship{program, "DEPENDS_ON", id})
		return nil
	}
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if err := add(fmt.Sprintf("SPDXRef-Module-%d", i+1), m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version, m.Sum); err != nil {
			return nil, err
		}
	}
	toolchain := strings.TrimPrefix(info.GoVersion, "go")
	return d, add("SPDXRef-Go", "Go standard library and runtime", toolchain, "pkg:golang/std@"+toolchain, "")
}

// settings lists how the program was built.
func settings(info *debug.BuildInfo) string {
	var list []string
	for _, s := range info.Settings {
		list = append(list, s.Key+"="+s.Value)
	}
	return "build settings: " + strings.Join(list, " ")
}
