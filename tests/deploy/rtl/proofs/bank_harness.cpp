// Drives a Verilated `engine_bank` alone, at its default sizes: reads, writes and changes of the bank at random, most of
// them of few places. Reads of known words that differ are counted; they, all reads of known words, and those of a place
// that is written in the same cycle go to standard output.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "Vaccelerator.h"
#include "ports.hpp"
#include "streams.hpp"
#include "verilated.h"

int main() {
    const size_t bytes = 16, words = 256;
    VerilatedContext context;
    context.randReset(2);
    context.randSeed(7);
    auto top = std::make_unique<Vaccelerator>(&context);
    Random random(3);
    const auto drawn = [&](uint32_t bits) {
        uint32_t found = 0;
        for (uint32_t at = 0; at < bits; ++at) found = found << 1 | random.chance(0.5);
        return found;
    };
    std::vector<Bytes> running(words), coming(words);  // empty: not known
    uint64_t wrong = 0, known = 0, same = 0;
    Bytes word(bytes), got(bytes);
    for (int cycle = 0; cycle < 100000; ++cycle) {
        if (random.chance(0.02)) {
            top->bank = !top->bank;
            running.swap(coming);
        }
        const uint32_t bits = random.chance(0.9) ? 2 : 8;
        top->address = static_cast<uint8_t>(drawn(bits));
        top->load_address = static_cast<uint8_t>(drawn(bits));
        top->write = random.chance(0.5);
        for (uint8_t& each : word) each = static_cast<uint8_t>(drawn(8));
        put(top->load_data, word.data(), bytes);
        const Bytes due = running[top->address];
        if (top->write) coming[top->load_address] = word;
        top->clk = 0;
        top->eval();
        top->clk = 1;
        top->eval();
        get(top->data, got.data(), bytes);
        if (due.empty()) continue;
        ++known;
        same += top->write && top->address == top->load_address;
        wrong += got != due;
    }
    top->final();
    std::printf("%llu %llu %llu\n", static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(known),
                static_cast<unsigned long long>(same));
    return 0;
}
