package transport_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(floodAddr); addr != "" {
		flood(addr) // this is the second process of TestTCPFlood
		return
	}
	goleak.VerifyTestMain(m)
}
