package tokenizer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// naiveMerge is the definition: of all pairs of neighbours with the lowest rank,
// merge the leftmost, until no pair has a rank.
func naiveMerge(m *bpe, ids []int32) []int32 {
	ids = slices.Clone(ids)
	for {
		at, best := -1, uint32(noRank)
		for i := range len(ids) - 1 {
			if rank, _ := m.merges.find(ids[i], ids[i+1]); rank < best {
				at, best = i, rank
			}
		}
		if at < 0 {
			return ids
		}
		_, ids[at] = m.merges.find(ids[at], ids[at+1])
		ids = slices.Delete(ids, at+1, at+2)
	}
}

// mergeModels are models of all kinds: by byte and by character, with distinct
// and with equal ranks.
var mergeModels = []string{
	"mini/llama3-style/tokenizer.json", "mini/llama2-style/tokenizer.json", "mini/tekken-v7/tekken.json",
	"mini/spm-noprefix/tokenizer.model", "mini/metaspace-never-nofuse/tokenizer.json",
}

func TestMergesFollowTheDefinition(t *testing.T) {
	for _, name := range mergeModels {
		t.Run(strings.ReplaceAll(name, "/", "-"), func(t *testing.T) {
			m := loadModel(t, name).model
			rapid.Check(t, func(t *rapid.T) {
				units := rapid.SampledFrom([]string{"a", "e", "n", "th", "in", " ", "\u2581", "\u2581the", "ing", "0", "漢", "é", "я", "\n", "Q"})
				w := strings.Join(rapid.SliceOfN(units, 1, 200).Draw(t, "word"), "")
				var start []int32
				r := symbolReader{m: m, w: w, unkAt: -1}
				for _, sym := range r.read(nil, math.MaxInt) {
					start = append(start, sym.id)
				}
				want := naiveMerge(m, start)

				s := new(scratch)
				s.begin(context.Background(), math.MaxInt)
				s.set(w, 0)
				shown := func(merge func(*scratch, string, int)) []int32 {
					s.ids = s.ids[:0]
					s.unkLast = false
					merge(s, w, 0)
					return slices.Clone(s.ids)
				}
				whole := func(merge func(*scratch, []symbol) []part) func(*scratch, string, int) {
					return func(s *scratch, w string, base int) {
						r := symbolReader{m: m, w: w, unkAt: -1}
						if s.symbols = r.read(s.symbols[:0], math.MaxInt); len(s.symbols) > 0 {
							m.giveAll(s, merge(s, s.symbols), w, base)
						}
					}
				}
				short, long := shown(whole(m.merge)), shown(whole(m.mergeHeap))
				require.Equal(t, short, shown(m.mergeLong), "list and windows differ for %q", w)
				require.Equal(t, short, long, "list and heap differ for %q", w)
				// Windows so small that their borders are everywhere.
				size := rapid.IntRange(2, 12).Draw(t, "window")
				windows := shown(func(s *scratch, w string, base int) {
					for !m.mergeWindows(s, w, base, size) {
						s.ids, s.unkLast = s.ids[:0], false
						size *= 2
					}
				})
				require.Equal(t, short, windows, "list and windows of %d differ for %q", size, w)
				if !m.spm { // whose unknown symbols are not emitted as they are
					require.Equal(t, want, short, "merges of %q", w)
				}
				// Cutting where nothing merges, and the cache, change nothing.
				s.ids = s.ids[:0]
				s.unkLast = false
				ignore := m.ignoreMerges
				unignored := *m
				unignored.ignoreMerges = false
				unignored.encode(s, 0, len(w))
				require.Equal(t, short, s.ids, "encode %q (ignore_merges %v)", w, ignore)
				s.ids = s.ids[:0]
				unignored.encode(s, 0, len(w))
				require.Equal(t, short, s.ids, "encode %q again", w)
			})
		})
	}
}

// TestWordsOfAnyBytes: words of arbitrary bytes follow the definition as text
// does, with and without ignore_merges.
func TestWordsOfAnyBytes(t *testing.T) {
	m := loadModel(t, "mini/llama3-style/tokenizer.json").model
	require.NotNil(t, m.byteJoins)
	require.True(t, m.ignoreMerges)
	bare := *m
	bare.ignoreMerges = false
	s := new(scratch)
	s.begin(t.Context(), math.MaxInt)
	r := rand.New(rand.NewPCG(1, 2))
	cut := 0
	for range 5000 {
		w := make([]byte, 0, 40)
		for range 1 + r.IntN(8) {
			if r.IntN(2) == 0 {
				w = append(w, byte(r.IntN(256)))
			} else {
				w = append(w, m.pieces[r.IntN(len(m.pieces))]...)
			}
		}
		var start []int32
		for i, b := range w {
			start = append(start, m.byteID[b])
			if i == 1 && !m.byteJoins.has(w[0], b) {
				cut++
			}
		}
		want := naiveMerge(m, start)
		s.set(string(w), 0)
		s.ids, s.spans, s.want = s.ids[:0], s.spans[:0], r.IntN(2) == 0
		bare.word(s, s.cur, 0)
		require.Equal(t, want, s.ids, "%q", w)
		at := 0
		for i, p := range s.spans {
			require.Equal(t, Span{at, at + len(m.pieces[s.ids[i]])}, p, "%q", w)
			at = p.End
		}
		if id := m.lookup(s.cur); id != none {
			want = []int32{id}
		}
		s.ids, s.spans = s.ids[:0], s.spans[:0]
		m.word(s, s.cur, 0)
		require.Equal(t, want, s.ids, "%q", w)
	}
	require.Greater(t, cut, 500)
}

// TestFirstMerges: two initial symbols of a word merge to the same as in the table of
// all merges, whatever their ids.
func TestFirstMerges(t *testing.T) {
	m := loadModel(t, "mini/llama3-style/tokenizer.json").model
	found := 0
	for _, left := range m.byteID {
		for _, right := range m.byteID {
			rank, to := m.firstMerge(left, right)
			wantRank, want := m.merges.find(left, right)
			require.Equal(t, wantRank, rank)
			if rank != noRank {
				require.Equal(t, want, to)
				found++
			}
		}
	}
	require.NotZero(t, found)
	m = loadModel(t, "mini/llama2-style/tokenizer.json").model
	require.Nil(t, m.byteJoins)
	found = 0
	for left := range int32(len(m.pieces)) {
		for _, right := range m.asciiID {
			rank, to := m.firstMerge(left, right)
			wantRank, want := m.merges.find(left, right)
			require.Equal(t, wantRank, rank)
			if rank != noRank {
				require.Equal(t, want, to)
				found++
			}
		}
	}
	require.NotZero(t, found)

	// Byte symbols after other tokens, contiguous and with a gap.
	for gap := range int32(2) {
		var vocab strings.Builder
		id := [256]int32{}
		for b := range id {
			id[b] = 5 + int32(b)
			if b >= 'b' {
				id[b] += gap
			}
			name, err := json.Marshal(toByteLevel(string([]byte{byte(b)})))
			require.NoError(t, err)
			fmt.Fprintf(&vocab, "%s:%d,", name, id[b])
		}
		tok, err := readHF([]byte(`{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},"decoder":{"type":"ByteLevel"},`+
			`"model":{"type":"BPE","vocab":{`+vocab.String()+`"ab":300,"<x>":0},"merges":["a b"]}}`), &config{})
		require.NoError(t, err)
		require.NotNil(t, tok.model.firstPairs)
		require.Equal(t, []int32{300, id[0xff], id['a'], 300, id['c']}, tok.Encode("ab\xffaabc", EncodeOptions{}))
	}
}

// TestByteSet: the set holds the neighbours of a piece, in their order, and no
// others.
func TestByteSet(t *testing.T) {
	j := new(byteSet)
	j.addPiece("")
	j.addPiece("a")
	require.Equal(t, byteSet{}, *j)
	j.addPiece("\x00a\xffA")
	for x := range 256 {
		for y := range 256 {
			pair := string([]byte{byte(x), byte(y)})
			require.Equal(t, strings.Contains("\x00a\xffA", pair), j.has(byte(x), byte(y)), "%q", pair)
		}
	}
}

// TestFallbackBytes: bytes that stand for characters outside the vocabulary, and bytes
// that are not UTF-8, merge like any symbols, with bytes of other characters too.
func TestFallbackBytes(t *testing.T) {
	load := func(merges string) *Tokenizer {
		var vocab strings.Builder
		for b := range 256 {
			fmt.Fprintf(&vocab, `"<0x%02X>":%d,`, b, b)
		}
		tok, err := readHF([]byte(`{"model":{"type":"BPE","byte_fallback":true,"vocab":{`+vocab.String()+
			`"a":256,"b":257,"ab":258,"<0xC3><0xA9>":259,"<0xA9><0xC3>":260,"<0xFF>a":261,"a<0xFF>":262,"\ufffd":263},"merges":["a b"`+merges+`]}}`), &config{})
		require.NoError(t, err)
		return tok
	}
	const c3, a9, ff = 0xc3, 0xa9, 0xff
	plain := load("")
	require.True(t, plain.model.complete)
	for text, want := range map[string][]int32{
		"éé": {c3, a9, c3, a9}, "\xff": {ff}, "ab\xffab": {258, ff, 258}, "\xc3a\xa9": {c3, 256, a9}, "\xff\xffb": {ff, ff, 257},
		"a\ufffd\xff": {256, 263, ff}, // U+FFFD is a character, and other invalid bytes are not
	} {
		ids, spans := encodeOffsets(t, plain, text, EncodeOptions{})
		require.Equal(t, want, ids, "%q", text)
		at := 0
		for _, p := range spans {
			require.Equal(t, at, p.Start, "%q: %v", text, spans)
			require.Less(t, at, p.End, "%q: %v", text, spans)
			at = p.End
		}
		require.Equal(t, len(text), at, "%q: %v", text, spans)
	}
	for _, tt := range []struct {
		merge, text string
		want        []int32
	}{
		{`,"<0xC3> <0xA9>"`, "aé\xc3éb", []int32{256, 259, c3, 259, 257}},
		{`,"<0xA9> <0xC3>"`, "ééa", []int32{c3, 260, a9, 256}},
		{`,"<0xFF> a"`, "a\xffab", []int32{256, ff, 258}},
		{`,"<0xFF> a"`, "b\xffa\xffa", []int32{257, 261, 261}},
		{`,"a <0xFF>"`, "ba\xff\ufffda\xffb", []int32{257, 262, 263, 262, 257}},
	} {
		tok := load(tt.merge)
		require.False(t, tok.model.complete)
		require.Equal(t, tt.want, tok.Encode(tt.text, EncodeOptions{}), "%q with %s", tt.text, tt.merge)
	}
}

// TestUnknownBesideBytes: where the vocabulary has only some bytes, a character becomes
// its bytes if all of them are there, else unknown; unknown characters, fused or one by
// one, come before the next known one, after any bytes in between (merge_word of the
// tokenizers library).
func TestUnknownBesideBytes(t *testing.T) {
	const unk, c3, a9, a = 0, 1, 2, 3
	for _, tt := range []struct {
		text            string
		fused, oneByOne []int32
	}{
		{"aéa", []int32{a, c3, a9, a}, []int32{a, c3, a9, a}},
		{"aè", []int32{a, unk}, []int32{a, unk}}, // there is no <0xA8>
		{"漢字a", []int32{unk, a}, []int32{unk, unk, a}},
		{"漢éa", []int32{c3, a9, unk, a}, []int32{c3, a9, unk, a}},
		{"漢éè", []int32{c3, a9, unk}, []int32{c3, a9, unk, unk}},
	} {
		for fuse, want := range map[string][]int32{"true": tt.fused, "false": tt.oneByOne} {
			tok, err := readHF([]byte(`{"model":{"type":"BPE","byte_fallback":true,"unk_token":"<unk>","fuse_unk":`+fuse+
				`,"vocab":{"<unk>":0,"<0xC3>":1,"<0xA9>":2,"a":3},"merges":[]}}`), &config{})
			require.NoError(t, err)
			ids, spans := encodeOffsets(t, tok, tt.text, EncodeOptions{})
			require.Equal(t, want, ids, "%q, fuse_unk %s", tt.text, fuse)
			last := 0
			for _, p := range spans {
				require.LessOrEqual(t, last, p.Start, "%q: %v", tt.text, spans)
				require.LessOrEqual(t, p.Start, p.End, "%q: %v", tt.text, spans)
				last = p.End
			}
		}
	}
}

// TestIgnoredMerges: with ignore_merges a text that is a piece becomes that token, even
// if no merges lead to it; a longer text does not.
func TestIgnoredMerges(t *testing.T) {
	for ignore, want := range map[string][]int32{"true": {3}, "false": {4, 2}} {
		tok, err := readHF([]byte(`{"model":{"type":"BPE","ignore_merges":`+ignore+
			`,"vocab":{"a":0,"b":1,"c":2,"abc":3,"ab":4},"merges":["a b"]}}`), &config{})
		require.NoError(t, err)
		ids, spans := encodeOffsets(t, tok, "abc", EncodeOptions{})
		require.Equal(t, want, ids, "ignore_merges %s", ignore)
		require.Equal(t, 3, spans[len(spans)-1].End)
		require.Equal(t, []int32{2, 4, 2}, tok.Encode("cabc", EncodeOptions{}), "ignore_merges %s", ignore)
	}
}

// TestLongWordMemory: a long word without far-reaching merges takes the memory of a few
// windows besides its tokens, and is abandoned beyond the token limit.
func TestLongWordMemory(t *testing.T) {
	m := loadModel(t, "mini/llama3-style/tokenizer.json").model
	r := rand.New(rand.NewPCG(1, 2))
	word := make([]byte, 1<<17)
	for i := range word {
		word[i] = byte('a' + r.IntN(26))
	}
	for _, limit := range []int{math.MaxInt, 10} {
		s := new(scratch)
		s.begin(t.Context(), limit)
		s.set(string(word), 0)
		m.mergeLong(s, s.cur, 0)
		require.Equal(t, limit == 10, s.err == errLimit)
		require.Equal(t, limit == 10, len(s.ids) < len(word)/4)
		require.Less(t, cap(s.symbols)+cap(s.window)+cap(s.joint)+cap(s.links), 1<<13)
	}
}

func TestRankHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		var h rankHeap
		for range 50 {
			h.push(r.Uint64N(1000))
		}
		want := slices.Sorted(slices.Values(h))
		for _, v := range want {
			require.Equal(t, v, h[0])
			h.pop()
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		h := rankHeap(rapid.SliceOf(rapid.Uint64Range(0, 50)).Draw(t, "start"))
		model := slices.Clone([]uint64(h))
		h.init()
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				v := rapid.Uint64Range(0, 50).Draw(t, "v")
				h.push(v)
				model = append(model, v)
			},
			"pop": func(t *rapid.T) {
				if len(h) == 0 {
					t.Skip("empty")
				}
				require.Equal(t, slices.Min(model), h[0])
				model = slices.Delete(model, slices.Index(model, h[0]), slices.Index(model, h[0])+1)
				h.pop()
			},
			"replace": func(t *rapid.T) {
				if len(h) == 0 {
					t.Skip("empty")
				}
				v := rapid.Uint64Range(0, 50).Draw(t, "v")
				model[slices.Index(model, h[0])] = v
				h.replace(v)
			},
			"": func(t *rapid.T) {
				require.Len(t, h, len(model))
				if len(h) > 0 {
					require.Equal(t, slices.Min(model), h[0])
				}
			},
		})
	})
}

func TestPairTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	type pair struct{ a, b int32 }
	var merges []merge
	want := make(map[pair]int32)
	for i := range int32(5000) {
		p := pair{r.Int32N(300), r.Int32N(300)}
		merges = append(merges, merge{p.a, p.b, uint32(i), i})
		want[p] = i
	}
	table := newPairTable(merges)
	listed := 0
	for m := range table.all {
		require.Equal(t, want[pair{m.left, m.right}], m.to)
		require.Equal(t, uint32(m.to), m.rank)
		listed++
	}
	require.Equal(t, len(want), listed)
	drop := make([]bool, 5000)
	for i := range drop[:1000] {
		drop[i] = true
	}
	table.remove(drop)
	maps.DeleteFunc(want, func(_ pair, to int32) bool { return drop[to] })
	for a := range int32(301) {
		for b := range int32(301) {
			rank, to := table.find(a, b)
			if i, ok := want[pair{a, b}]; ok {
				require.Equal(t, i, to)
				require.Equal(t, uint32(i), rank)
			} else {
				require.Equal(t, uint32(noRank), rank)
			}
		}
	}
}

// TestPairTableSpreads: whatever the seed, right symbols find their slots in tables
// of about the first size however regular they are, and are found there.
func TestPairTableSpreads(t *testing.T) {
	for _, n := range []int32{1, 2, 3, 5, 17, 100, 1000, 70_000} {
		for _, seed := range []uint32{0, 1, 3, 0x3fffffff, 0x55555555, 0x7fffffff, 0x800961bf, 0xaaaaaaab, 0xffffffff} {
			for _, step := range []int32{1, 256, 257, 610} {
				if n > 1000 && step > 1 {
					continue // ids beyond all vocabularies
				}
				var merges []merge
				for i := range n {
					merges = append(merges, merge{0, i * step, uint32(i), i})
				}
				table := seededPairTable(merges, seed)
				size := int(table.symbols[0].size)
				require.LessOrEqual(t, size, 2*firstSize(uint32(n))+8, "%d, seed %x, every %d", n, seed, step)
				require.Len(t, table.slots, 1+size)
				for i := range n {
					rank, to := table.find(0, i*step)
					require.Equal(t, uint32(i), rank)
					require.Equal(t, i, to)
				}
			}
		}
	}
}

// TestPairTableReseeds: a seed that gives too many pairs of one left symbol the same
// slots is replaced by another.
func TestPairTableReseeds(t *testing.T) {
	// Symbols whose hashes agree in the upper bits of both halves, which choose slots.
	const seed = 7
	var crowd []merge
	blank := pairTable{seed: seed}
	want := blank.hash(0) & 0xff00ff00
	for id := int32(0); len(crowd) < 8; id++ {
		if blank.hash(id)&0xff00ff00 == want {
			crowd = append(crowd, merge{0, id, uint32(id), id})
		}
	}
	require.False(t, blank.fill(crowd))
	table := seededPairTable(crowd, seed)
	require.NotEqual(t, uint32(seed), table.seed)
	for _, m := range crowd {
		rank, to := table.find(0, m.right)
		require.Equal(t, m.rank, rank)
		require.Equal(t, m.to, to)
	}
}

// TestWindowsOfAnyMerges merges long words by windows with merges of every kind:
// random ones, whose results merge before or after the symbols they came from, and a
// chain in which the last byte of a word decides what happens to its first.
func TestWindowsOfAnyMerges(t *testing.T) {
	check := func(t require.TestingT, m *bpe, w []byte) {
		word := string(w)
		r := symbolReader{m: m, w: word, unkAt: -1}
		var start []int32
		for _, sym := range r.read(nil, math.MaxInt) {
			start = append(start, sym.id)
		}
		want := naiveMerge(m, start)
		s := new(scratch)
		s.begin(context.Background(), math.MaxInt)
		s.set(word, 0)
		s.want = true
		m.mergeLong(s, word, 0)
		require.Equal(t, want, s.ids, "%q", word)
		at := 0
		for i, id := range s.ids {
			require.Equal(t, m.pieces[id], word[s.spans[i].Start:s.spans[i].End])
			require.Equal(t, at, s.spans[i].Start)
			at = s.spans[i].End
		}
		require.Equal(t, len(word), at)
		// Windows so small that their borders fall into the same tokens again and again.
		for size := 2; size <= 5; size++ {
			s.backTo(mark{})
			for k := size; !m.mergeWindows(s, word, 0, k); k *= 2 {
				s.backTo(mark{})
			}
			require.Equal(t, want, s.ids, "%q by windows of %d", word, size)
		}
	}
	fresh := func() *bpe {
		m := &bpe{byteLevel: true, unk: none, merges: newPairTable(nil)}
		for b := range 256 {
			m.byteID[b] = int32(b)
			m.pieces = append(m.pieces, string([]byte{byte(b)}))
		}
		return m
	}
	merge := func(m *bpe, left, right int32, rank uint32) {
		m.pieces = append(m.pieces, m.pieces[left]+m.pieces[right])
		m.merges = newPairTable(slices.AppendSeq([]merge{{left, right, rank, int32(len(m.pieces) - 1)}}, m.merges.all))
	}

	chain := fresh()
	for b := range int32(255) {
		merge(chain, b, b+1, uint32(300-b))
	}
	var up []byte
	for b := range 256 {
		up = append(up, byte(b))
	}
	for cut := 200; cut < 256; cut++ {
		check(t, chain, up[:cut])
		check(t, chain, append(append(slices.Clone(up[:cut]), up...), up[:cut]...))
	}

	// Nothing comes before a word, least of all token 0.
	zero := fresh()
	merge(zero, 'a', 'b', 0)
	merge(zero, 0, 256, 1)
	check(t, zero, []byte("abab\x00ab"))

	// The last letter of a token decides what becomes of the first, two windows back.
	far := fresh()
	merge(far, 'b', 'a', 3)
	merge(far, 'c', 256, 0)
	merge(far, 'b', 257, 7)
	check(t, far, []byte("bbcbaaaaa"))

	rapid.Check(t, func(t *rapid.T) {
		m := fresh()
		letters := rapid.IntRange(1, 4).Draw(t, "letters")
		symbols := []int32{}
		for i := range letters {
			symbols = append(symbols, int32('a'+i))
		}
		for range rapid.IntRange(1, 20).Draw(t, "merges") {
			left, right := rapid.SampledFrom(symbols).Draw(t, "left"), rapid.SampledFrom(symbols).Draw(t, "right")
			if rank, _ := m.merges.find(left, right); rank != noRank || len(m.pieces[left])+len(m.pieces[right]) > 60 {
				continue
			}
			merge(m, left, right, rapid.Uint32Range(0, 15).Draw(t, "rank"))
			symbols = append(symbols, int32(len(m.pieces)-1))
		}
		w := rapid.SliceOfN(rapid.ByteRange('a', byte('a'+letters-1)), 1, 300).Draw(t, "word")
		check(t, m, bytes.Repeat(w, rapid.IntRange(1, 3).Draw(t, "times")))
	})
}

// TestJoinSet: the set holds all neighbours of a piece, including U+0000.
func TestJoinSet(t *testing.T) {
	for _, piece := range []string{"\x00a", "a\x00", "ab", "日本", "\U0001F600x", "aa"} {
		j := newJoinSet()
		j.addPiece(piece)
		r := []rune(piece)
		require.True(t, j.has(r[0], r[1]), "%q", piece)
		require.False(t, j.has(r[1], 'q'), "%q", piece)
	}
}
