package hub

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Ref names a model repository at a revision.
type Ref struct {
	Owner, Name string

	// Revision is a branch, a tag or a full commit hash; "" means main.
	Revision string

	// Tag asks for a GGUF file, such as Q4_K_M; "" is the checkpoint or,
	// in a repository of GGUF files only, the usual one.
	Tag string
}

// ParseRef reads OWNER/NAME, OWNER/NAME@REVISION, and either with :TAG at the end.
func ParseRef(s string) (Ref, error) {
	name, tag, hasTag := s, "", false
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		name, tag, hasTag = s[:i], s[i+1:], true
	}
	r, err := parseRepo(name, s)
	if err == nil && hasTag {
		r.Tag = tag
		if err = checkPart(tag); err != nil {
			err = fmt.Errorf("hub name %q: tag %w", s, err)
		}
	}
	if err != nil {
		return Ref{}, err
	}
	return r, nil
}

// parseRepo reads OWNER/NAME or OWNER/NAME@REVISION, of the name s.
func parseRepo(repo, s string) (Ref, error) {
	repo, rev, hasRev := strings.Cut(repo, "@")
	owner, name, ok := strings.Cut(repo, "/")
	if !ok {
		return Ref{}, fmt.Errorf("hub name %q: expected OWNER/NAME[@REVISION][:TAG]", s)
	}
	for _, part := range []string{owner, name} {
		if err := checkPart(part); err != nil {
			return Ref{}, fmt.Errorf("hub name %q: %w", s, err)
		}
	}
	if strings.HasSuffix(name, ".git") {
		return Ref{}, fmt.Errorf("hub name %q: ends in .git, expected the name alone", s)
	}
	if hasRev {
		if err := checkRevision(rev); err != nil {
			return Ref{}, fmt.Errorf("hub name %q: %w", s, err)
		}
	}
	return Ref{Owner: owner, Name: name, Revision: rev}, nil
}

// checkPart checks an owner or a name by the hub's rules, which leave "--" free
// to separate the two in the cache.
func checkPart(s string) error {
	if len(s) == 0 || len(s) > 96 {
		return fmt.Errorf("%q has %d characters, expected 1 to 96", s, len(s))
	}
	for _, r := range s {
		if !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_' || r == '.') {
			return fmt.Errorf("%q has the character %q, expected letters, digits, '-', '_' and '.'", s, r)
		}
	}
	if strings.Contains(s, "--") || strings.Contains(s, "..") || strings.Trim(s, "-.") != s {
		return fmt.Errorf("%q begins or ends with '-' or '.', or has two of them in a row", s)
	}
	return nil
}

// checkRevision accepts what can be a path under refs.
func checkRevision(s string) error {
	if err := checkPath(s); err != nil {
		return fmt.Errorf("revision %w", err)
	}
	return nil
}

// checkPath accepts slash-separated relative paths that stay within their
// folder on every system.
func checkPath(s string) error {
	bad := s == "" || len(s) > 1000 || strings.ContainsAny(s, "\\:*?\"<>|")
	for _, r := range s {
		bad = bad || r < ' ' || r == 0x7f || r == '\uFFFD'
	}
	for part := range strings.SplitSeq(s, "/") {
		bad = bad || part == "" || strings.TrimRight(part, ". ") != part || len(part) > 255
	}
	if bad || !filepath.IsLocal(filepath.FromSlash(s)) {
		return fmt.Errorf("%.200q is not a plain relative path", s)
	}
	return nil
}

// Repo returns OWNER/NAME.
func (r Ref) Repo() string { return r.Owner + "/" + r.Name }

// String returns the name in the form that ParseRef reads.
func (r Ref) String() string {
	s := r.Repo()
	if r.Revision != "" {
		s += "@" + r.Revision
	}
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	return s
}

func (r Ref) revision() string {
	if r.Revision == "" {
		return "main"
	}
	return r.Revision
}

// check guards against a Ref that was not made by ParseRef.
func (r Ref) check() error {
	_, err := ParseRef(r.String())
	return err
}

// isHex reports whether s is n lower-case hexadecimal digits.
func isHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}
