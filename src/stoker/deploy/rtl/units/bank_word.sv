// A word of a unit's constants, twice: one for each bank. The chain of an update goes through it.
module bank_word #(
    parameter int W = 8,
    parameter FILE = ""         // of bank 0, at first
) (
    input  logic           clk,
    input  logic           rst,
    input  logic [33:0]    update,
    output logic [33:0]    update_on,
    input  logic           shadow,
    output logic [2*W-1:0] words       // of bank 0 lowest
);
    logic write, write_at;
    logic [W-1:0] written;
    logic [W-1:0] kept [2];
    initial $readmemh(FILE, kept, 0, 0);

    chain_tap #(.W(W), .DEPTH(1)) tap (.clk, .rst, .update, .update_on, .write, .write_at, .written);
    always_ff @(posedge clk) if (write) kept[shadow] <= written;
    assign words = {kept[1], kept[0]};
    logic unused;
    assign unused = write_at;
endmodule
