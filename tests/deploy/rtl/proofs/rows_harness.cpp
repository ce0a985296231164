// Drives a Verilated `engine_rows` alone: FOLDER/memory.bin has its numbers, FOLDER/commands.bin ten words of 64 bits for
// each start. What it has written is left in FOLDER/out.bin, and how often each place was written in FOLDER/counts.bin.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "Vaccelerator.h"
#include "ports.hpp"
#include "streams.hpp"
#include "verilated.h"

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    const std::string folder = argv[1];
    const Bytes numbers = read_file(folder + "/memory.bin"), given = read_file(folder + "/commands.bin");
    const int32_t* memory = reinterpret_cast<const int32_t*>(numbers.data());
    const size_t size = numbers.size() / 4;
    VerilatedContext context;
    context.randReset(2);
    context.randSeed(7);
    auto top = std::make_unique<Vaccelerator>(&context);
    Bytes out(2 * size), counts(size);
    uint32_t on_way[3] = {0, 0, 0};  // a number is there three cycles after its address
    uint64_t cycle = 0;
    auto clock = [&] {
        top->clk = 0;
        top->x = on_way[2] & 0x3ffff;
        top->eval();
        const size_t read = top->read_address, to = top->write_address;
        if (top->write && !top->rst && to < size) {
            const uint16_t data = static_cast<uint16_t>(top->write_data);
            out[2 * to] = static_cast<uint8_t>(data);
            out[2 * to + 1] = static_cast<uint8_t>(data >> 8);
            ++counts[to];
        }
        top->clk = 1;
        top->eval();
        on_way[2] = on_way[1], on_way[1] = on_way[0];
        on_way[0] = read < size ? static_cast<uint32_t>(memory[read]) : 0x2aaaa;
        ++cycle;
    };
    top->start = 0, top->rst = 1;
    for (int at = 0; at < 4; ++at) clock();
    top->rst = 0;
    for (size_t at = 0; at + 80 <= given.size(); at += 80) {
        uint64_t by[10];
        std::memcpy(by, given.data() + at, 80);
        top->norm = by[0] & 1, top->a = by[1], top->c = by[2], top->size = by[3], top->rows = by[4], top->epsilon = by[5];
        top->root_bits = by[6], top->reciprocal_bits = by[7], top->shift = by[8], top->share_bits = by[9];
        top->start = 1;
        clock();
        top->start = 0;
        const uint64_t most = cycle + 1000 + by[4] * (300 + 40 * by[3]);
        do clock();
        while (top->busy && cycle < most);
        if (cycle >= most) return std::fprintf(stderr, "it does not end\n"), 3;
        for (int idle = 0; idle < 4; ++idle) clock();  // a last write is on its way
    }
    top->final();
    return write_file(folder + "/out.bin", out) && write_file(folder + "/counts.bin", counts) ? 0 : 3;
}
