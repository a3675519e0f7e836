package serve

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/lukv/lukv/lukv"
)

// page is what people see at /: one file, which needs no others.
//
//go:embed page/index.html
var page []byte

// pagePolicy lets the page use its own script and style, identified by their digests,
// and talk to this server. Nothing else is loaded, wherever it comes from. It is made when
// the page is first served: other commands have no use for it.
var pagePolicy = sync.OnceValue(func() string { return contentPolicy(string(page)) })

// contentPolicy returns the Content-Security-Policy of a page with inline scripts and
// styles. Browsers normalise Windows line endings, which Git may have put into the page,
// before they compute the digests.
func contentPolicy(page string) string {
	page = strings.ReplaceAll(page, "\r\n", "\n")
	digests := func(tag string) string {
		var out []string
		for _, m := range regexp.MustCompile(`(?s)<`+tag+`[^>]*>(.*?)</`+tag+`>`).FindAllStringSubmatch(page, -1) {
			sum := sha256.Sum256([]byte(m[1]))
			out = append(out, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
		}
		return strings.Join(out, " ")
	}
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		digests("script"), digests("style"))
}

// servePage serves the page. It holds no secrets: what it requests needs the key.
func servePage(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy())
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	boundTaking(w)
	w.Write(page)
}

// compressions is the answer about what kv_compression may name.
type compressions struct {
	Metrics    []string     `json:"metrics"`
	Allocators []string     `json:"allocators"`
	Profiles   []string     `json:"profiles"`
	Default    *lukv.Policy `json:"default"`

	// What a policy that names no metric has, and the allocators, by metric, of one that names
	// none.
	DefaultMetric     string            `json:"default_metric"`
	DefaultAllocators map[string]string `json:"default_allocators"`

	// Summaries explain in a sentence each.
	Summaries struct {
		Metrics    map[string]string `json:"metrics"`
		Allocators map[string]string `json:"allocators"`
	} `json:"summaries"`
	// Needs are "profile" or "parameters", of allocators that do not work by their name alone;
	// ProfiledMetrics are the metrics that some profile of the server was made with.
	Needs           map[string]string `json:"needs"`
	ProfiledMetrics []string          `json:"profiled_metrics"`
}

// compressions lists what kv_compression may name, and explains it.
func (s *Server) compressions(w http.ResponseWriter, _ *http.Request) error {
	known := s.profiles.Load()
	out := compressions{
		Metrics: lukv.Metrics(), Allocators: lukv.Allocators(), Profiles: known.names(), Default: s.o.Compression,
		DefaultMetric: lukv.DefaultMetric, DefaultAllocators: map[string]string{},
		Needs: map[string]string{}, ProfiledMetrics: known.metrics(),
	}
	if slices.Contains(out.ProfiledMetrics, "learned") {
		out.Metrics = append(out.Metrics, "learned")
	}
	out.Summaries.Metrics, out.Summaries.Allocators = map[string]string{}, map[string]string{}
	for _, name := range append(out.ProfiledMetrics, out.Metrics...) {
		out.Summaries.Metrics[name] = lukv.MetricSummary(name)
		p := lukv.Policy{Metric: lukv.MetricConfig{Name: name}}
		_, allocator := p.Methods()
		out.DefaultAllocators[name] = allocator.Name
	}
	for _, name := range out.Allocators {
		out.Summaries.Allocators[name] = lukv.AllocatorSummary(name)
		switch c := (lukv.AllocatorConfig{Name: name}); {
		case c.NeedsProfile():
			out.Needs[name] = "profile"
		case c.Validate() != nil:
			out.Needs[name] = "parameters"
		}
	}
	return writeJSON(w, out)
}

// documentTokens returns the text of every token of a document, in the order of the
// positions that /kept reports, including what the template puts in front. A character
// belongs to the token that completes it.
func (s *Server) documentTokens(w http.ResponseWriter, r *http.Request) error {
	doc, err := s.docs.find(s.owner(r), r.PathValue("id"))
	if err != nil {
		return err
	}
	v, err := s.served(r.Context(), doc.Model)
	if err != nil {
		return err
	}
	q, err := doc.request(r.Context(), v)
	if err != nil {
		return err
	}
	if err := countAnswer(r, 24*len(q.Prompt)+escapeCost*(len(doc.text)+len(doc.System))); err != nil {
		return err
	}
	decoder := v.tok.NewDecoder(false)
	texts := make([]string, len(q.Prompt))
	for i, id := range q.Prompt {
		texts[i] = decoder.Write(id)
	}
	return writeJSON(w, map[string]any{"object": "document.tokens", "document": doc.ID, "tokens": texts})
}
