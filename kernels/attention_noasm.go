//go:build !(amd64 || arm64) || purego

package kernels

func (c CPU) attentionAsm(a *AttentionArgs, s *AttentionScratch) bool { return false }

func (c CPU) blocksAsm(a *AttentionArgs, from, to int, b *AttentionBlocks, s *AttentionScratch) bool {
	return false
}

func (c CPU) mergeAsm(a *AttentionArgs, b *AttentionBlocks, s *AttentionScratch) bool { return false }

func (c CPU) attentionScores(dst, q []float32, kv *KV, from int, scale float32) {
	scoresPortable(dst, q, kv, from, scale)
}

func (c CPU) softmaxWeights(dst []float32, st Softmax) { softmaxWeightsPortable(dst, st) }
