package dialog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// TestHeldBackTextIsGivenAtTheEnd: what might have become a stop text belongs to the answer if
// it did not.
func TestHeldBackTextIsGivenAtTheEnd(t *testing.T) {
	tok, err := tokenizer.Load(builtin.Files())
	require.NoError(t, err)
	for _, text := range []string{"the EN", "E", "the END", "the end"} {
		a := NewAnswer(tok, newStops(t, "END"))
		given := ""
		for _, id := range tok.Encode(text, tokenizer.EncodeOptions{}) {
			piece, _ := a.Token(id)
			given += piece
		}
		given += a.End()
		want, _, stopped := strings.Cut(text, "END")
		require.Equal(t, want, given)
		require.Equal(t, want, a.Text())
		require.Equal(t, stopped, a.Stopped())
	}
}

// TestWithoutADocumentNothingIsCompressed, whatever the policy, but while decoding.
func TestWithoutADocumentNothingIsCompressed(t *testing.T) {
	m := open(t)
	for _, decode := range []lukv.DecodeConfig{{}, {Mode: "periodic", TargetSize: 1000}} {
		c := begin(t, m, false)
		c.Sampling.MaxTokens = 2
		c.Session.Compression = &lukv.Policy{Ratio: 0.5, Decode: decode}
		_, err := c.Ask(t.Context(), strings.Repeat("Who is Ada? ", 10), quiet)
		require.NoError(t, err)
		st := c.Held().Stats()
		require.Equal(t, st.FullEntries, st.Entries)
		require.Zero(t, st.ContextTokens)
	}
}

// TestLossOfADocument: it is measured where a document is compressed and somebody asks for it,
// and nowhere else.
func TestLossOfADocument(t *testing.T) {
	m := open(t)
	document := builtin.Samples()[0].Context
	most := 0.5
	for _, c := range []struct {
		policy   *lukv.Policy
		measure  bool
		most     *float64
		exact    bool
		measured bool
	}{
		{&lukv.Policy{Ratio: 0.9, Metric: lukv.MetricConfig{Name: "keydiff"}}, true, nil, false, true},
		{&lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}}, false, &most, false, true},
		{&lukv.Policy{Ratio: 0.9, Metric: lukv.MetricConfig{Name: "keydiff"}}, false, nil, false, false},
		{nil, true, nil, false, false},
		{nil, false, &most, false, false},
		{nil, false, nil, true, false},
	} {
		x := begin(t, m, false)
		x.Session.Compression, x.MeasureLoss, x.MaxLoss, x.Exact = c.policy, c.measure, c.most, c.exact
		require.NoError(t, x.ReadDocument(t.Context(), document), "%+v", c)
		require.NotNil(t, x.Held())
		require.Equal(t, c.measured, x.Loss != nil, "%+v", c)
		if c.measured {
			require.Positive(t, x.Loss.Facts, "%+v", c)
		}
		if c.policy == nil {
			st := x.Held().Stats()
			require.Equal(t, st.FullEntries, st.Entries)
		}
	}
}

// TestExactConversation: answers are those of the whole cache, although a compressed copy
// drafts them; nothing is evicted.
func TestExactConversation(t *testing.T) {
	m := open(t)
	var texts []string
	for _, exact := range []bool{false, true} {
		c := begin(t, m, false)
		c.Sampling.MaxTokens, c.Exact, c.Drafts = 20, exact, 3
		if exact {
			c.Session.Compression = &lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "keydiff"}}
		}
		require.NoError(t, c.ReadDocument(t.Context(), builtin.Samples()[0].Context))
		text := ""
		_, err := c.Ask(t.Context(), builtin.Samples()[0].Question, func(s string) error { text += s; return nil })
		require.NoError(t, err)
		texts = append(texts, text)
		st := c.Held().Stats()
		require.Equal(t, st.FullEntries, st.Entries)
		require.Equal(t, exact, st.Drafted > 0)
	}
	require.Equal(t, texts[0], texts[1])
	c := begin(t, m, false)
	c.Exact = true
	c.Session.Compression = &lukv.Policy{Ratio: 0.8, Decode: lukv.DecodeConfig{Mode: "h2o", TargetSize: 64}}
	require.Error(t, c.ReadDocument(t.Context(), "a b c"), "a copy does not compress while decoding")
	require.Nil(t, c.Held())
}

// TestTimeOfAConversation: a restored conversation keeps the time of its beginning, since its
// prompt has it; a session without messages has none.
func TestTimeOfAConversation(t *testing.T) {
	m, path := open(t), filepath.Join(t.TempDir(), "saved")
	c := begin(t, m, false)
	require.NoError(t, c.ReadDocument(t.Context(), "Ada lives here."))
	require.NoError(t, c.Save(t.Context(), path))
	later, err := NewFormat(m, FixedDate.AddDate(1, 0, 0))
	require.NoError(t, err)
	for _, want := range []time.Time{FixedDate, later.now} {
		again := NewConversation(m, later)
		require.NoError(t, again.Restore(t.Context(), path, model.SessionOptions{}))
		require.True(t, want.Equal(again.format.now))
		require.Equal(t, []any{c.Document, c.headTokens, c.head}, []any{again.Document, again.headTokens, again.head})
		again.Close()
		if want.Equal(FixedDate) {
			require.NoError(t, os.Remove(StateFile(path)))
		}
	}
	require.True(t, time.Unix(1721995200, 0).Equal(FixedDate), "results depend on it: noon of 26 July 2024, UTC")
	at := later.At(FixedDate)
	require.True(t, FixedDate.Equal(at.now))
	require.False(t, FixedDate.Equal(later.now), "the other stays")
	require.Equal(t, []string{"<s>", "", later.Template()}, []string{at.SpecialToken("bos_token"), at.SpecialToken("none"), at.Template()})
	plain, err := PlainFormat(m)
	require.NoError(t, err)
	require.Equal(t, []string{"", ""}, []string{plain.SpecialToken("bos_token"), plain.Template()})
}

// TestContextAtTheVeryBeginning: a prompt may begin with its context.
func TestContextAtTheVeryBeginning(t *testing.T) {
	plain, err := PlainFormat(open(t))
	require.NoError(t, err)
	bare := &Format{tok: plain.tok}
	in := chat.Input{Messages: []*chat.Object{chat.NewMessage("user", "Where?")}}
	tokens, front, n, err := bare.SplitTokens(t.Context(), in, "the old garden", 1000)
	require.NoError(t, err)
	require.Empty(t, front)
	require.Equal(t, "the old garden", bare.tok.Decode(tokens[:n], false))
}
