// Two banks of DEPTH words. One is read, a cycle after its address; the other one, the shadow, takes an update.
module bank_memory #(
    parameter int W = 8,
    parameter int DEPTH = 1,
    parameter FILE = ""         // of bank 0, at first
) (
    input  logic clk,
    input  logic write,
    input  logic [((DEPTH > 1) ? $clog2(DEPTH) : 1)-1:0] write_at,
    input  logic [W-1:0] written,
    input  logic shadow,
    input  logic bank,
    input  logic [((DEPTH > 1) ? $clog2(DEPTH) : 1)-1:0] at,
    output logic [W-1:0] word
);
    localparam int AW = (DEPTH > 1) ? $clog2(DEPTH) : 1;
    (* no_rw_check *) logic [W-1:0] words [2 << AW];
    initial $readmemh(FILE, words, 0, DEPTH - 1);
    always_ff @(posedge clk) begin
        if (write) words[{shadow, write_at}] <= written;
        word <= words[{bank, at}];
    end
endmodule
