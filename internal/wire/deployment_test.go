package wire

import "testing"

func TestPipelinePoolOfOptions(t *testing.T) {
	t.Parallel()
	if n := pipelinePoolOf(&struct{ PoolSize, PipelinePoolSize int }{20, 7}); n != 7 {
		t.Errorf("%d, want 7", n)
	}
	if n := pipelinePoolOf(&struct{ PoolSize int }{20}); n != 0 { // before go-redis 9.22
		t.Errorf("%d, want 0", n)
	}
}
