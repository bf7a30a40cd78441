module github.com/go-rlock/rlock/cmd/rlock

go 1.25.0

require (
	github.com/creack/pty v1.1.24
	github.com/go-rlock/rlock v0.0.0
	github.com/redis/go-redis/v9 v9.22.0
	github.com/robfig/cron/v3 v3.0.1
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.9
	golang.org/x/sys v0.47.0
	golang.org/x/term v0.44.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
)

replace github.com/go-rlock/rlock => ../..
